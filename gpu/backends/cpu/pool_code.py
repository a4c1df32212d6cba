"""The native half of the worker pool, as LLVM IR.

State of a pool, at the offsets below in memory that Python owns; what different threads write lies
in cache lines of their own:

======  =========  =================================================================
offset  field      meaning
======  =========  =================================================================
0       epoch      u32, counts launches; workers wait for it to change
64      done       u32, workers that have finished this launch
68      waiting    u32, whether the launching thread sleeps on `done`
128     function   of this launch
136     args       of this launch
144     workers    i64, the launching thread included
152     spin       i64, nanoseconds that a wait looks before it sleeps
160     stop       u32, whether workers are to leave at the next epoch
164     sleepers   u32, workers that sleep on `epoch`, or are about to
168     caller     u32, the launching thread's processor, and one more; 0 where it is unknown
192     started    i64, workers whose threads were started
256     records    for each worker from 1 on: its state's address, its number, its thread
======  =========  =================================================================

A waiter first announces itself (`sleepers`, `waiting`), then looks once more, then sleeps; the
other side first changes the value, then looks for sleepers. All four are sequentially consistent,
so one of the two sees the other. The futex call looks again by itself before it sleeps.

Everything here holds for the Linux kernel's futex (man 2 futex): operations FUTEX_WAIT 0 and
FUTEX_WAKE 1, with FUTEX_PRIVATE_FLAG 128.

Before workers are woken they are kept off the launching thread's processor, where there are
processors enough. In virtual machines Linux takes a processor that has halted for one that the
host preempted, and wakes threads on the waker's own instead (`available_idle_cpu` in kernel/sched,
`kvm_arch_vcpu_put` in arch/x86/kvm, which says so of any processor that stops): the worker then
runs when the caller has done its share and sleeps, and a kernel takes twice as long.
"""

from __future__ import annotations

from typing import Final

# Offsets and sizes that Python needs.
WORKERS: Final = 144
SPIN: Final = 152
RECORDS: Final = 256
RECORD_SIZE: Final = 24
EXTERNALS: Final = (
    "clock_gettime",
    "pthread_create",
    "pthread_join",
    "pthread_setaffinity_np",
    "sched_getaffinity",
    "sched_getcpu",
    "syscall",
)
# Numbers of the futex system call: arch/x86/entry/syscalls/syscall_64.tbl,
# include/uapi/asm-generic/unistd.h. Pauses: what tells the core that a loop is waiting.
_FUTEX: Final = {"x86_64": 202, "aarch64": 98}
_PAUSE: Final = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)"),
}

_TEMPLATE: Final = """
declare i32 @clock_gettime(i32, ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_setaffinity_np(i64, i64, ptr)
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_getcpu()
declare i64 @syscall(i64, ...)
declare <16 x i64> @llvm.ctpop.v16i64(<16 x i64>)
declare i64 @llvm.vector.reduce.add.v16i64(<16 x i64>)
$PAUSE_DECLARATION

define private void @sleep_while(ptr %word, i32 %value) #0 {
  %r = call i64 (i64, ...) @syscall(i64 $FUTEX, ptr %word, i64 128, i32 %value,
                                    i64 0, i64 0, i64 0)
  ret void
}

define private void @wake_all(ptr %word) #0 {
  %r = call i64 (i64, ...) @syscall(i64 $FUTEX, ptr %word, i64 129, i64 2147483647,
                                    i64 0, i64 0, i64 0)
  ret void
}

; Nanoseconds of a clock that nobody sets.
define private i64 @clock() #0 {
  %time = alloca [2 x i64], align 8
  %r = call i32 @clock_gettime(i32 1, ptr %time)
  %nanoseconds.at = getelementptr i8, ptr %time, i64 8
  %seconds = load i64, ptr %time, align 8
  %nanoseconds = load i64, ptr %nanoseconds.at, align 8
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %nanoseconds
  ret i64 %now
}

; Spins while the word has this value, at most as long as the pool spins; then the word's value.
; The clock is read after every 32 pauses: one takes 25 to 140 cycles, by processor.
define private i32 @spin_while(ptr %state, ptr %word, i32 %value) #0 {
entry:
  %spin.at = getelementptr i8, ptr %state, i64 152
  %limit = load i64, ptr %spin.at, align 8
  %begin = call i64 @clock()
  br label %look
look:
  %count = phi i64 [ 0, %entry ], [ %next, %again ], [ 0, %in.time ]
  %now = load atomic i32, ptr %word acquire, align 4
  %changed = icmp ne i32 %now, %value
  %next = add i64 %count, 1
  %many = icmp sgt i64 %next, 32
  br i1 %changed, label %out, label %wait
wait:
  br i1 %many, label %check, label %again
again:
  $PAUSE
  br label %look
check:
  %time = call i64 @clock()
  %spent = sub i64 %time, %begin
  %late = icmp sge i64 %spent, %limit
  br i1 %late, label %out, label %in.time
in.time:
  br label %look
out:
  ret i32 %now
}

; Keeps the workers off the calling thread's processor where it has another one for each of them.
define private void @make_room(ptr %state) #0 {
entry:
  %mask = alloca <16 x i64>, align 64
  %workers.at = getelementptr i8, ptr %state, i64 144
  %caller.at = getelementptr i8, ptr %state, i64 168
  %workers = load i64, ptr %workers.at, align 8
  %others = sub i64 %workers, 1
  %cpu = call i32 @sched_getcpu()
  %caller = add i32 %cpu, 1
  %before = load i32, ptr %caller.at, align 4
  %stays = icmp eq i32 %caller, %before
  br i1 %stays, label %out, label %moved
moved:
  store i32 %caller, ptr %caller.at, align 4
  store <16 x i64> zeroinitializer, ptr %mask, align 64
  %error = call i32 @sched_getaffinity(i32 0, i64 128, ptr %mask)
  %inside = icmp ult i32 %cpu, 1024
  %known = icmp eq i32 %error, 0
  %usable = and i1 %inside, %known
  br i1 %usable, label %exclude, label %out
exclude:
  %word = lshr i32 %cpu, 6
  %shift = and i32 %cpu, 63
  %shift.64 = zext i32 %shift to i64
  %bit = shl i64 1, %shift.64
  %not.bit = xor i64 %bit, -1
  %word.at = getelementptr i64, ptr %mask, i32 %word
  %allowed = load i64, ptr %word.at, align 8
  %left = and i64 %allowed, %not.bit
  store i64 %left, ptr %word.at, align 8
  %rest = load <16 x i64>, ptr %mask, align 64
  %counts = call <16 x i64> @llvm.ctpop.v16i64(<16 x i64> %rest)
  %count = call i64 @llvm.vector.reduce.add.v16i64(<16 x i64> %counts)
  %enough = icmp uge i64 %count, %others
  br i1 %enough, label %each, label %out
each:
  %index = phi i64 [ 0, %exclude ], [ %next, %place ]
  %more = icmp slt i64 %index, %others
  br i1 %more, label %place, label %out
place:
  %offset = mul i64 %index, 24
  %from = add i64 %offset, 272
  %thread.at = getelementptr i8, ptr %state, i64 %from
  %thread = load i64, ptr %thread.at, align 8
  %r = call i32 @pthread_setaffinity_np(i64 %thread, i64 128, ptr %mask)
  %next = add i64 %index, 1
  br label %each
out:
  ret void
}

; A worker thread: waits for the next epoch, does its share, says so.
define private ptr @worker(ptr %record) #0 {
entry:
  %number.at = getelementptr i8, ptr %record, i64 8
  %state = load ptr, ptr %record, align 8
  %number = load i64, ptr %number.at, align 8
  %done.at = getelementptr i8, ptr %state, i64 64
  %waiting.at = getelementptr i8, ptr %state, i64 68
  %function.at = getelementptr i8, ptr %state, i64 128
  %args.at = getelementptr i8, ptr %state, i64 136
  %workers.at = getelementptr i8, ptr %state, i64 144
  %stop.at = getelementptr i8, ptr %state, i64 160
  %sleepers.at = getelementptr i8, ptr %state, i64 164
  %workers = load i64, ptr %workers.at, align 8
  %others.64 = sub i64 %workers, 1
  %others = trunc i64 %others.64 to i32
  br label %wait
wait:
  %seen = phi i32 [ 0, %entry ], [ %seen, %rise ], [ %epoch, %work ], [ %epoch, %last ],
                  [ %epoch, %wake ]
  %epoch = call i32 @spin_while(ptr %state, ptr %state, i32 %seen)
  %arrived = icmp ne i32 %epoch, %seen
  br i1 %arrived, label %launched, label %park
park:
  %s.up = atomicrmw add ptr %sleepers.at, i32 1 seq_cst, align 4
  %epoch.again = load atomic i32, ptr %state seq_cst, align 4
  %still = icmp eq i32 %epoch.again, %seen
  br i1 %still, label %sleep, label %rise
sleep:
  call void @sleep_while(ptr %state, i32 %seen)
  br label %rise
rise:
  %s.down = atomicrmw sub ptr %sleepers.at, i32 1 seq_cst, align 4
  br label %wait
launched:
  %stop = load atomic i32, ptr %stop.at acquire, align 4
  %stopping = icmp ne i32 %stop, 0
  br i1 %stopping, label %leave, label %work
work:
  %function = load ptr, ptr %function.at, align 8
  %args = load ptr, ptr %args.at, align 8
  call void %function(ptr %args, i64 %number, i64 %workers)
  %before = atomicrmw add ptr %done.at, i32 1 seq_cst, align 4
  %now = add i32 %before, 1
  %is.last = icmp eq i32 %now, %others
  br i1 %is.last, label %last, label %wait
last:
  %waiting = load atomic i32, ptr %waiting.at seq_cst, align 4
  %somebody = icmp ne i32 %waiting, 0
  br i1 %somebody, label %wake, label %wait
wake:
  call void @wake_all(ptr %done.at)
  br label %wait
leave:
  ret ptr null
}

; Starts the threads of workers 1 and up; 0, or the error number of pthread_create.
define i32 @pool_start(ptr %state) #0 {
entry:
  %workers.at = getelementptr i8, ptr %state, i64 144
  %started.at = getelementptr i8, ptr %state, i64 192
  %workers = load i64, ptr %workers.at, align 8
  br label %check
check:
  %number = phi i64 [ 1, %entry ], [ %number.next, %ok ]
  %more = icmp slt i64 %number, %workers
  br i1 %more, label %start, label %out
start:
  %index = sub i64 %number, 1
  %offset = mul i64 %index, 24
  %from = add i64 %offset, 256
  %record = getelementptr i8, ptr %state, i64 %from
  %number.at = getelementptr i8, ptr %record, i64 8
  %thread.at = getelementptr i8, ptr %record, i64 16
  store ptr %state, ptr %record, align 8
  store i64 %number, ptr %number.at, align 8
  %error = call i32 @pthread_create(ptr %thread.at, ptr null, ptr @worker, ptr %record)
  %failed = icmp ne i32 %error, 0
  br i1 %failed, label %out, label %ok
ok:
  store i64 %number, ptr %started.at, align 8
  %number.next = add i64 %number, 1
  br label %check
out:
  %result = phi i32 [ 0, %check ], [ %error, %start ]
  ret i32 %result
}

; Makes the threads leave, and waits until they have.
define void @pool_stop(ptr %state) #0 {
entry:
  %stop.at = getelementptr i8, ptr %state, i64 160
  %started.at = getelementptr i8, ptr %state, i64 192
  %started = load i64, ptr %started.at, align 8
  store atomic i32 1, ptr %stop.at seq_cst, align 4
  %e = atomicrmw add ptr %state, i32 1 seq_cst, align 4
  call void @wake_all(ptr %state)
  br label %check
check:
  %index = phi i64 [ 0, %entry ], [ %next, %join ]
  %more = icmp slt i64 %index, %started
  br i1 %more, label %join, label %out
join:
  %offset = mul i64 %index, 24
  %from = add i64 %offset, 272
  %thread.at = getelementptr i8, ptr %state, i64 %from
  %thread = load i64, ptr %thread.at, align 8
  %r = call i32 @pthread_join(i64 %thread, ptr null)
  %next = add i64 %index, 1
  br label %check
out:
  ret void
}

; Runs a kernel on all workers, the calling thread being worker 0, and waits for them.
define void @pool_run(ptr %state, ptr %function, ptr %args) #0 {
entry:
  %done.at = getelementptr i8, ptr %state, i64 64
  %waiting.at = getelementptr i8, ptr %state, i64 68
  %function.at = getelementptr i8, ptr %state, i64 128
  %args.at = getelementptr i8, ptr %state, i64 136
  %workers.at = getelementptr i8, ptr %state, i64 144
  %sleepers.at = getelementptr i8, ptr %state, i64 164
  %workers = load i64, ptr %workers.at, align 8
  %others.64 = sub i64 %workers, 1
  %others = trunc i64 %others.64 to i32
  %alone = icmp eq i32 %others, 0
  br i1 %alone, label %share, label %launch
launch:
  store ptr %function, ptr %function.at, align 8
  store ptr %args, ptr %args.at, align 8
  store atomic i32 0, ptr %done.at monotonic, align 4
  %e = atomicrmw add ptr %state, i32 1 seq_cst, align 4
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %asleep = icmp ne i32 %sleepers, 0
  br i1 %asleep, label %rouse, label %share
rouse:
  call void @make_room(ptr %state)
  call void @wake_all(ptr %state)
  br label %share
share:
  call void %function(ptr %args, i64 0, i64 %workers)
  br i1 %alone, label %out, label %check
check:
  %done = load atomic i32, ptr %done.at acquire, align 4
  %all = icmp eq i32 %done, %others
  br i1 %all, label %out, label %spin
spin:
  %done.spun = call i32 @spin_while(ptr %state, ptr %done.at, i32 %done)
  %moved = icmp ne i32 %done.spun, %done
  br i1 %moved, label %check, label %park
park:
  store atomic i32 1, ptr %waiting.at seq_cst, align 4
  %done.again = load atomic i32, ptr %done.at seq_cst, align 4
  %still = icmp eq i32 %done.again, %done
  br i1 %still, label %sleep, label %rise
sleep:
  call void @sleep_while(ptr %done.at, i32 %done)
  br label %rise
rise:
  store atomic i32 0, ptr %waiting.at seq_cst, align 4
  br label %check
out:
  ret void
}

; Runs a table of (function, args, whether on all workers) in order.
define void @pool_replay(ptr %state, ptr %table, i64 %count) #0 {
entry:
  br label %check
check:
  %index = phi i64 [ 0, %entry ], [ %next, %done ]
  %more = icmp slt i64 %index, %count
  br i1 %more, label %entry.of, label %out
entry.of:
  %offset = mul i64 %index, 24
  %function.at = getelementptr i8, ptr %table, i64 %offset
  %args.at = getelementptr i8, ptr %function.at, i64 8
  %parallel.at = getelementptr i8, ptr %function.at, i64 16
  %function = load ptr, ptr %function.at, align 8
  %args = load ptr, ptr %args.at, align 8
  %parallel = load i64, ptr %parallel.at, align 8
  %on.all = icmp ne i64 %parallel, 0
  br i1 %on.all, label %all, label %one
all:
  call void @pool_run(ptr %state, ptr %function, ptr %args)
  br label %done
one:
  call void %function(ptr %args, i64 0, i64 1)
  br label %done
done:
  %next = add i64 %index, 1
  br label %check
out:
  ret void
}

attributes #0 = { nounwind }
"""


def pool_source(architecture: str) -> str:
    """The module for `x86_64` or `aarch64`.

    It defines `pool_start`, `pool_stop`, `pool_run` and `pool_replay`.
    """
    declaration, pause = _PAUSE[architecture]
    return (
        _TEMPLATE.replace("$PAUSE_DECLARATION", declaration)
        .replace("$PAUSE", pause)
        .replace("$FUTEX", str(_FUTEX[architecture]))
    )
