; The native stores of gpu/core/hoststore.py, in LLVM's IR. `tools/hoststore.py` fills in what is in
; braces for each architecture and keeps the code bytes in gpu/core/hoststore_code.py; what the
; functions take and promise is described in gpu/core/hoststore.py.
;
; All arguments are i64: systems differ in where narrower ones lie on the stack. Code is generated
; with no pass but the inlining of what asks for it: the optimiser could turn loops into calls of
; memcpy, and nothing here may refer to anything outside.

declare void @llvm.trap()
{declarations}

; One store of exactly that width. A width that does not exist stops the process.
define internal void @store(i64 %address, i64 %value, i64 %width) #1 {
  %p = inttoptr i64 %address to ptr
  switch i64 %width, label %wrong [ i64 4, label %four  i64 8, label %eight
                                    i64 2, label %two   i64 1, label %one ]
one:
  %v1 = trunc i64 %value to i8
  store volatile i8 %v1, ptr %p, align 1
  ret void
two:
  %v2 = trunc i64 %value to i16
  store volatile i16 %v2, ptr %p, align 2
  ret void
four:
  %v4 = trunc i64 %value to i32
  store volatile i32 %v4, ptr %p, align 4
  ret void
eight:
  store volatile i64 %value, ptr %p, align 8
  ret void
wrong:
  call void @llvm.trap()
  unreachable
}

; One load of exactly that width, before all that follows.
define internal i64 @load(i64 %address, i64 %width) #1 {
  %p = inttoptr i64 %address to ptr
  switch i64 %width, label %wrong [ i64 4, label %four  i64 8, label %eight
                                    i64 2, label %two   i64 1, label %one ]
one:
  %b1 = load atomic volatile i8, ptr %p acquire, align 1
  %v1 = zext i8 %b1 to i64
  ret i64 %v1
two:
  %b2 = load atomic volatile i16, ptr %p acquire, align 2
  %v2 = zext i16 %b2 to i64
  ret i64 %v2
four:
  %b4 = load atomic volatile i32, ptr %p acquire, align 4
  %v4 = zext i32 %b4 to i64
  ret i64 %v4
eight:
  %v8 = load atomic volatile i64, ptr %p acquire, align 8
  ret i64 %v8
wrong:
  call void @llvm.trap()
  unreachable
}

define void @fence() #0 {
  {fence}
  ret void
}

; The block holds the arguments of `kick`, first those that change with each submission: KICK_BLOCK.
define void @kick(i64 %block) #0 {
  %block_p = inttoptr i64 %block to ptr
  %put.p = getelementptr i64, ptr %block_p, i64 0
  %put = load i64, ptr %put.p, align 8
  %template.p = getelementptr i64, ptr %block_p, i64 1
  %template = load i64, ptr %template.p, align 8
  %n.p = getelementptr i64, ptr %block_p, i64 2
  %n = load i64, ptr %n.p, align 8
  %wptr_value.p = getelementptr i64, ptr %block_p, i64 3
  %wptr_value = load i64, ptr %wptr_value.p, align 8
  %doorbell_value.p = getelementptr i64, ptr %block_p, i64 4
  %doorbell_value = load i64, ptr %doorbell_value.p, align 8
  %last.p = getelementptr i64, ptr %block_p, i64 5
  %last = load i64, ptr %last.p, align 8
  %last_value.p = getelementptr i64, ptr %block_p, i64 6
  %last_value = load i64, ptr %last_value.p, align 8
  %ring.p = getelementptr i64, ptr %block_p, i64 7
  %ring = load i64, ptr %ring.p, align 8
  %ring_dwords.p = getelementptr i64, ptr %block_p, i64 8
  %ring_dwords = load i64, ptr %ring_dwords.p, align 8
  %wptr.p = getelementptr i64, ptr %block_p, i64 9
  %wptr = load i64, ptr %wptr.p, align 8
  %wptr_width.p = getelementptr i64, ptr %block_p, i64 10
  %wptr_width = load i64, ptr %wptr_width.p, align 8
  %doorbell.p = getelementptr i64, ptr %block_p, i64 11
  %doorbell = load i64, ptr %doorbell.p, align 8
  %doorbell_width.p = getelementptr i64, ptr %block_p, i64 12
  %doorbell_width = load i64, ptr %doorbell_width.p, align 8
  %ring_p = inttoptr i64 %ring to ptr
  %template_p = inttoptr i64 %template to ptr
  %empty = icmp eq i64 %ring_dwords, 0
  br i1 %empty, label %wrong, label %start
start:
  %begin = urem i64 %put, %ring_dwords
  br label %chunk
chunk:                                       ; what fits before the ring's end
  %from = phi i64 [ 0, %start ], [ %until, %copy ]
  %at = phi i64 [ %begin, %start ], [ 0, %copy ]
  %left = sub i64 %n, %from
  %room = sub i64 %ring_dwords, %at
  %is.room = icmp ult i64 %left, %room
  %count = select i1 %is.room, i64 %left, i64 %room
  %until = add i64 %from, %count
  %copied = icmp eq i64 %count, 0
  br i1 %copied, label %publish, label %copy
copy:
  %i = phi i64 [ %from, %chunk ], [ %i.next, %copy ]
  %to = phi i64 [ %at, %chunk ], [ %to.next, %copy ]
  %dword.p = getelementptr i32, ptr %template_p, i64 %i
  %dword = load i32, ptr %dword.p, align 4
  %to.p = getelementptr i32, ptr %ring_p, i64 %to
  store volatile i32 %dword, ptr %to.p, align 4
  %i.next = add nuw i64 %i, 1
  %to.next = add nuw i64 %to, 1
  %chunk.end = icmp eq i64 %i.next, %until
  br i1 %chunk.end, label %chunk, label %copy
publish:
  {fence}
  %no.wptr = icmp eq i64 %wptr, 0
  br i1 %no.wptr, label %ring.bell, label %move.wptr
move.wptr:
  call void @store(i64 %wptr, i64 %wptr_value, i64 %wptr_width)
  {fence}
  br label %ring.bell
ring.bell:
  %no.bell = icmp eq i64 %doorbell, 0
  br i1 %no.bell, label %record, label %bell
bell:
  call void @store(i64 %doorbell, i64 %doorbell_value, i64 %doorbell_width)
  br label %record
record:
  %no.last = icmp eq i64 %last, 0
  br i1 %no.last, label %end, label %last.one
last.one:
  call void @store(i64 %last, i64 %last_value, i64 8)
  br label %end
end:
  ret void
wrong:
  call void @llvm.trap()
  unreachable
}

; Rows: { offset, segment, width, shift, symbol, position, (unused), mask, addend }.
%row = type { i32, i16, i8, i8, i32, i8, [3 x i8], i64, i64 }

; The block holds the arguments of `patch`, in order.
define void @patch(i64 %block) #0 {
entry:
  %block_p = inttoptr i64 %block to ptr
  %segments.p = getelementptr i64, ptr %block_p, i64 0
  %segments = load i64, ptr %segments.p, align 8
  %table.p = getelementptr i64, ptr %block_p, i64 1
  %table = load i64, ptr %table.p, align 8
  %n.p = getelementptr i64, ptr %block_p, i64 2
  %n = load i64, ptr %n.p, align 8
  %values.p = getelementptr i64, ptr %block_p, i64 3
  %values = load i64, ptr %values.p, align 8
  %segments_p = inttoptr i64 %segments to ptr
  %table_p = inttoptr i64 %table to ptr
  %values_p = inttoptr i64 %values to ptr
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %stored ]
  %done = icmp eq i64 %i, %n
  br i1 %done, label %end, label %one
one:
  %row.p = getelementptr %row, ptr %table_p, i64 %i
  %offset.p = getelementptr %row, ptr %row.p, i32 0, i32 0
  %offset.narrow = load i32, ptr %offset.p, align 8
  %offset = zext i32 %offset.narrow to i64
  %segment.p = getelementptr %row, ptr %row.p, i32 0, i32 1
  %segment = load i16, ptr %segment.p, align 4
  %segment.wide = zext i16 %segment to i64
  %width.p = getelementptr %row, ptr %row.p, i32 0, i32 2
  %width.narrow = load i8, ptr %width.p, align 2
  %width = zext i8 %width.narrow to i64
  %shift.p = getelementptr %row, ptr %row.p, i32 0, i32 3
  %shift.narrow = load i8, ptr %shift.p, align 1
  %shift = zext i8 %shift.narrow to i64
  %symbol.p = getelementptr %row, ptr %row.p, i32 0, i32 4
  %symbol = load i32, ptr %symbol.p, align 8
  %symbol.wide = zext i32 %symbol to i64
  %position.p = getelementptr %row, ptr %row.p, i32 0, i32 5
  %position.narrow = load i8, ptr %position.p, align 4
  %position = zext i8 %position.narrow to i64
  %mask.p = getelementptr %row, ptr %row.p, i32 0, i32 7
  %mask = load i64, ptr %mask.p, align 8
  %addend.p = getelementptr %row, ptr %row.p, i32 0, i32 8
  %addend = load i64, ptr %addend.p, align 8
  %base.p = getelementptr i64, ptr %segments_p, i64 %segment.wide
  %base = load i64, ptr %base.p, align 8
  %value.p = getelementptr i64, ptr %values_p, i64 %symbol.wide
  %value = load i64, ptr %value.p, align 8

  %target = add i64 %base, %offset
  %sum = add i64 %value, %addend
  %shifted = lshr i64 %sum, %shift
  %field = and i64 %shifted, %mask
  %placed = shl i64 %field, %position
  %covered = shl i64 %mask, %position
  %bits = mul nuw nsw i64 %width, 8
  %rest = sub nuw nsw i64 64, %bits
  %all = lshr i64 -1, %rest
  %whole = icmp eq i64 %covered, %all
  br i1 %whole, label %stored, label %partial
partial:                                     ; only then is the target read: it may be uncached
  %old = call i64 @load(i64 %target, i64 %width)
  %unmasked = xor i64 %covered, -1
  %kept = and i64 %old, %unmasked
  %mixed = or i64 %kept, %placed
  br label %stored
stored:
  %word = phi i64 [ %placed, %one ], [ %mixed, %partial ]
  call void @store(i64 %target, i64 %word, i64 %width)
  %i.next = add nuw i64 %i, 1
  br label %loop
end:
  ret void
}

define void @copy_wc(i64 %dst, i64 %src, i64 %size) #0 {
entry:
  br label %head
head:                                        ; single bytes until the target is aligned
  %h.dst = phi i64 [ %dst, %entry ], [ %h.dst.next, %head.one ]
  %h.src = phi i64 [ %src, %entry ], [ %h.src.next, %head.one ]
  %h.size = phi i64 [ %size, %entry ], [ %h.size.next, %head.one ]
  %h.none = icmp eq i64 %h.size, 0
  %h.low = and i64 %h.dst, 15
  %h.aligned = icmp eq i64 %h.low, 0
  %h.done = or i1 %h.none, %h.aligned
  br i1 %h.done, label %wide, label %head.one
head.one:
  %h.from = inttoptr i64 %h.src to ptr
  %h.to = inttoptr i64 %h.dst to ptr
  %h.byte = load i8, ptr %h.from, align 1
  store volatile i8 %h.byte, ptr %h.to, align 1
  %h.dst.next = add nuw i64 %h.dst, 1
  %h.src.next = add nuw i64 %h.src, 1
  %h.size.next = sub nuw i64 %h.size, 1
  br label %head
wide:                                        ; 64 bytes that no cache keeps
  %w.dst = phi i64 [ %h.dst, %head ], [ %w.dst.next, %wide.one ]
  %w.src = phi i64 [ %h.src, %head ], [ %w.src.next, %wide.one ]
  %w.size = phi i64 [ %h.size, %head ], [ %w.size.next, %wide.one ]
  %w.done = icmp ult i64 %w.size, 64
  br i1 %w.done, label %tail, label %wide.one
wide.one:
  %w.from = inttoptr i64 %w.src to ptr
  %w.to = inttoptr i64 %w.dst to ptr
{wide}
  %w.dst.next = add nuw i64 %w.dst, 64
  %w.src.next = add nuw i64 %w.src, 64
  %w.size.next = sub nuw i64 %w.size, 64
  br label %wide
tail:
  %t.dst = phi i64 [ %w.dst, %wide ], [ %t.dst.next, %tail.one ]
  %t.src = phi i64 [ %w.src, %wide ], [ %t.src.next, %tail.one ]
  %t.size = phi i64 [ %w.size, %wide ], [ %t.size.next, %tail.one ]
  %t.done = icmp eq i64 %t.size, 0
  br i1 %t.done, label %end, label %tail.one
tail.one:
  %t.from = inttoptr i64 %t.src to ptr
  %t.to = inttoptr i64 %t.dst to ptr
  %t.byte = load i8, ptr %t.from, align 1
  store volatile i8 %t.byte, ptr %t.to, align 1
  %t.dst.next = add nuw i64 %t.dst, 1
  %t.src.next = add nuw i64 %t.src, 1
  %t.size.next = sub nuw i64 %t.size, 1
  br label %tail
end:
  {fence}
  ret void
}

; `clock_gettime` is called by address: i32 (i32 clock, ptr to { seconds i64, nanoseconds i64 }).
define internal i64 @now(i64 %clock_gettime, i64 %clock) #0 {
  %time = alloca { i64, i64 }, align 8
  %function = inttoptr i64 %clock_gettime to ptr
  %clock.narrow = trunc i64 %clock to i32
  %ignored = call i32 %function(i32 %clock.narrow, ptr %time)
  %seconds = load i64, ptr %time, align 8
  %rest.p = getelementptr { i64, i64 }, ptr %time, i32 0, i32 1
  %rest = load i64, ptr %rest.p, align 8
  %whole = mul i64 %seconds, 1000000000
  %all = add i64 %whole, %rest
  ret i64 %all
}

define i32 @spin(i64 %address, i64 %width, i64 %wanted, i64 %op, i64 %limit, i64 %clock_gettime,
                 i64 %clock) #0 {
entry:
  %start = call i64 @now(i64 %clock_gettime, i64 %clock)
  %none = icmp eq i64 %limit, 0
  br label %look
look:                                        ; once more after the time is over
  %over = phi i1 [ %none, %entry ], [ false, %wait ], [ %late, %ask ]
  %round = phi i32 [ 1, %entry ], [ %round.next, %wait ], [ 1, %ask ]
  %value = call i64 @load(i64 %address, i64 %width)
  %equal = icmp eq i64 %value, %wanted
  %differs = icmp ne i64 %value, %wanted
  %reached = icmp uge i64 %value, %wanted
  %is.differs = icmp eq i64 %op, 1
  %is.reached = icmp eq i64 %op, 2
  %first = select i1 %is.differs, i1 %differs, i1 %equal
  %met = select i1 %is.reached, i1 %reached, i1 %first
  br i1 %met, label %yes, label %not.yet
not.yet:
  br i1 %over, label %no, label %pause
pause:
  {pause}
  %round.next = add nuw i32 %round, 1
  %turn = and i32 %round, 31
  %is.turn = icmp eq i32 %turn, 0
  br i1 %is.turn, label %ask, label %wait
wait:
  br label %look
ask:
  %time = call i64 @now(i64 %clock_gettime, i64 %clock)
  %passed = sub i64 %time, %start
  %late = icmp uge i64 %passed, %limit
  br label %look
yes:
  ret i32 1
no:
  ret i32 0
}

attributes #0 = { nounwind "no-builtins" "no-jump-tables"="true" }
attributes #1 = { nounwind alwaysinline "no-builtins" "no-jump-tables"="true" }
!0 = !{ i32 1 }
