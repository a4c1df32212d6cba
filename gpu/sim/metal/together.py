"""The part of Metal's library by which threads do something together.

"Metal Shading Language Specification", version 3.2: 2.3 (SIMD-group matrices), 6.9 (barriers,
functions of SIMD-groups) and 6.15 (atomics). Which thread has which elements of a matrix is told
nowhere: here it is as programs that look at them expect (MLX's `steel/gemm/mma.h`).

What threads of a SIMD-group give each other goes by one function of the model, `gpu_msl_gather`:
the words of all lanes, then which of them were there, and the number of the lane that asks.
"""

from __future__ import annotations

from typing import Final

GROUPS: Final = """
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((uint)a | (uint)b); }
inline void threadgroup_barrier(mem_flags flags) { gpu_msl_barrier((uint)flags & 3); }
inline void simdgroup_barrier(mem_flags flags) { gpu_msl_simdgroup_barrier((uint)flags & 3); }

template <class T> struct Lanes {
  T of[32];
  uint active, lane;
};
template <class T> inline Lanes<T> gather(T value) {
  Lanes<T> lanes;
  for (uint word = 0; word < (sizeof(T) + 3) / 4; word++) {
    uint mine = 0, all[34];
    uint bytes = sizeof(T) - 4 * word < 4 ? sizeof(T) - 4 * word : 4;
    __builtin_memcpy(&mine, (thread uchar *)&value + 4 * word, bytes);
    gpu_msl_gather(mine, all);
    for (uint lane = 0; lane < 32; lane++)
      __builtin_memcpy((thread uchar *)(lanes.of + lane) + 4 * word, all + lane, bytes);
    lanes.active = all[32];
    lanes.lane = all[33];
  }
  return lanes;
}
template <class T> inline T simd_shuffle(T value, ushort lane) {
  return gather(value).of[lane & 31];
}
template <class T> inline T simd_broadcast(T value, ushort lane) {
  return simd_shuffle(value, lane);
}
template <class T> inline T simd_shuffle_xor(T value, ushort mask) {
  Lanes<T> lanes = gather(value);
  return lanes.of[(lanes.lane ^ mask) & 31];
}
template <class T> inline T simd_shuffle_down(T value, ushort by) {
  Lanes<T> lanes = gather(value);
  return lanes.lane + by < 32 ? lanes.of[lanes.lane + by] : value;
}
template <class T> inline T simd_shuffle_up(T value, ushort by) {
  Lanes<T> lanes = gather(value);
  return lanes.lane >= by ? lanes.of[lanes.lane - by] : value;
}
template <class T> inline T simd_shuffle_and_fill_down(T value, T fill, ushort by) {
  Lanes<T> lanes = gather(value), filled = gather(fill);
  return lanes.lane + by < 32 ? lanes.of[lanes.lane + by] : filled.of[(lanes.lane + by) & 31];
}
template <class T> inline T simd_shuffle_and_fill_up(T value, T fill, ushort by) {
  Lanes<T> lanes = gather(value), filled = gather(fill);
  return lanes.lane >= by ? lanes.of[lanes.lane - by] : filled.of[(lanes.lane - by) & 31];
}
template <class T> inline T simd_shuffle_rotate_down(T value, ushort by) {
  Lanes<T> lanes = gather(value);
  return lanes.of[(lanes.lane + by) & 31];
}
template <class T> inline T simd_shuffle_rotate_up(T value, ushort by) {
  Lanes<T> lanes = gather(value);
  return lanes.of[(lanes.lane - by) & 31];
}
template <class T> inline T simd_broadcast_first(T value) {
  Lanes<T> lanes = gather(value);
  return lanes.of[__builtin_ctz(lanes.active)];
}
inline bool simd_is_first() {
  Lanes<uint> lanes = gather(0u);
  return (uint)__builtin_ctz(lanes.active) == lanes.lane;
}
struct simd_vote {
  typedef ulong vote_t;
  ulong votes;
  explicit constexpr operator ulong() const { return votes; }
  bool all() const { return votes == 0xffffffff; }
  bool any() const { return votes != 0; }
};
inline simd_vote simd_ballot(bool value) {
  Lanes<uint> lanes = gather((uint)value);
  ulong votes = 0;
  for (uint lane = 0; lane < 32; lane++)
    if (lanes.active >> lane & 1) votes |= (ulong)(lanes.of[lane] & 1) << lane;
  return simd_vote{votes};
}
inline simd_vote simd_active_threads_mask() { return simd_vote{gather(0u).active}; }
inline bool simd_any(bool value) { return simd_ballot(value).votes != 0; }
inline bool simd_all(bool value) {
  Lanes<uint> lanes = gather((uint)value);
  for (uint lane = 0; lane < 32; lane++)
    if ((lanes.active >> lane & 1) && !lanes.of[lane]) return false;
  return true;
}
#define REDUCTION(name, expression)                                            \\
  template <class T> inline T simd_##name(T value) {                           \\
    Lanes<T> lanes = gather(value);                                            \\
    uint first = __builtin_ctz(lanes.active);                                  \\
    T a = lanes.of[first];                                                     \\
    for (uint lane = first + 1; lane < 32; lane++)                             \\
      if (lanes.active >> lane & 1) { T b = lanes.of[lane]; a = expression; }  \\
    return a;                                                                  \\
  }
REDUCTION(sum, a + b)
REDUCTION(product, a * b)
REDUCTION(min, b < a ? b : a)
REDUCTION(max, a < b ? b : a)
REDUCTION(and, a & b)
REDUCTION(or, a | b)
REDUCTION(xor, a ^ b)
#define PREFIX(name, first, expression)                                        \\
  template <class T> inline T simd_prefix_exclusive_##name(T value) {          \\
    Lanes<T> lanes = gather(value);                                            \\
    T a = first;                                                               \\
    for (uint lane = 0; lane < lanes.lane; lane++)                             \\
      if (lanes.active >> lane & 1) { T b = lanes.of[lane]; a = expression; }  \\
    return a;                                                                  \\
  }                                                                            \\
  template <class T> inline T simd_prefix_inclusive_##name(T value) {          \\
    T a = simd_prefix_exclusive_##name(value), b = value;                      \\
    return expression;                                                         \\
  }
PREFIX(sum, T(0), a + b)
PREFIX(product, T(1), a * b)

template <class T, int Rows, int Columns> struct simdgroup_matrix {
  static_assert(Rows == 8 && Columns == 8, "SIMD-group matrices have 8 rows and 8 columns");
  typedef vec<T, 2> storage_type;
  storage_type held;
  simdgroup_matrix() {}
  explicit simdgroup_matrix(T diagonal) {
    uint lane = gather(0u).lane;
    for (uint i = 0; i < 2; i++) held[i] = row(lane) == column(lane) + i ? diagonal : T(0);
  }
  thread storage_type &thread_elements() thread { return held; }
  static uint row(uint lane) { return (lane / 4 & 4) + lane / 2 % 4; }
  static uint column(uint lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }
  static uint lane_of(uint row, uint column) {
    return (row & 4) << 2 | (column & 4) << 1 | (row & 3) << 1 | (column >> 1 & 1);
  }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
template <class T, int R, int C> inline simdgroup_matrix<T, R, C>
make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, R, C> made;
  made.held = (vec<T, 2>)(value);
  return made;
}
#define MATRIX_MEMORY(space)                                                                    \\
  template <class T, int R, int C> inline void simdgroup_load(                                  \\
      thread simdgroup_matrix<T, R, C> &to, const space T *from, ulong elements_per_row = C,    \\
      ulong2 origin = (ulong2)(0), bool transposed = false) {                                   \\
    typedef simdgroup_matrix<T, R, C> matrix;                                                   \\
    uint lane = gather(0u).lane;                                                                \\
    for (uint i = 0; i < 2; i++) {                                                              \\
      ulong row = matrix::row(lane), column = matrix::column(lane) + i;                         \\
      to.held[i] = transposed ? from[(origin.y + column) * elements_per_row + origin.x + row]   \\
                              : from[(origin.y + row) * elements_per_row + origin.x + column];  \\
    }                                                                                           \\
  }                                                                                             \\
  template <class T, int R, int C> inline void simdgroup_store(                                 \\
      simdgroup_matrix<T, R, C> from, space T *to, ulong elements_per_row = C,                  \\
      ulong2 origin = (ulong2)(0), bool transposed = false) {                                   \\
    typedef simdgroup_matrix<T, R, C> matrix;                                                   \\
    uint lane = gather(0u).lane;                                                                \\
    for (uint i = 0; i < 2; i++) {                                                              \\
      ulong row = matrix::row(lane), column = matrix::column(lane) + i;                         \\
      if (transposed) to[(origin.y + column) * elements_per_row + origin.x + row] = from.held[i]; \\
      else to[(origin.y + row) * elements_per_row + origin.x + column] = from.held[i];          \\
    }                                                                                           \\
  }
MATRIX_MEMORY(device)
MATRIX_MEMORY(threadgroup)
template <class D, class A, class B, class C> inline void simdgroup_multiply_accumulate(
    thread simdgroup_matrix<D, 8, 8> &to, thread simdgroup_matrix<A, 8, 8> &a,
    thread simdgroup_matrix<B, 8, 8> &b, thread simdgroup_matrix<C, 8, 8> &c) {
  typedef simdgroup_matrix<D, 8, 8> matrix;
  Lanes<vec<A, 2>> left = gather(a.held);
  Lanes<vec<B, 2>> right = gather(b.held);
  uint row = matrix::row(left.lane), column = matrix::column(left.lane);
  for (uint i = 0; i < 2; i++) {
    float sum = (float)c.held[i];
    for (uint k = 0; k < 8; k++)
      sum = __builtin_fmaf((float)left.of[matrix::lane_of(row, k)][k & 1],
                           (float)right.of[matrix::lane_of(k, column)][i], sum);
    to.held[i] = (D)sum;
  }
}
template <class D, class A, class B> inline void simdgroup_multiply(
    thread simdgroup_matrix<D, 8, 8> &to, thread simdgroup_matrix<A, 8, 8> &a,
    thread simdgroup_matrix<B, 8, 8> &b) {
  simdgroup_matrix<D, 8, 8> zeros = make_filled_simdgroup_matrix<D, 8, 8>(D(0));
  simdgroup_multiply_accumulate(to, a, b, zeros);
}
"""
ATOMICS: Final = """
enum memory_order { memory_order_relaxed };
template <class T> struct atomic { T held; };
template struct atomic<int>;
template struct atomic<uint>;
template struct atomic<ulong>;
template struct atomic<float>;
template <class T> using Word = conditional_t<sizeof(T) == 4, uint, ulong>;
#define atomic_int atomic<int>
#define atomic_uint atomic<uint>
#define atomic_float atomic<float>
#define ATOMICS(space)                                                                        \\
  template <class T> inline T atomic_load_explicit(                                           \\
      const volatile space atomic<T> *at, memory_order) {                                     \\
    return as_type<T>(__atomic_load_n((const volatile space Word<T> *)&at->held, 0));         \\
  }                                                                                           \\
  template <class T> inline void atomic_store_explicit(                                       \\
      volatile space atomic<T> *at, T value, memory_order) {                                  \\
    __atomic_store_n((volatile space Word<T> *)&at->held, as_type<Word<T>>(value), 0);        \\
  }                                                                                           \\
  template <class T> inline bool atomic_compare_exchange_weak_explicit(                       \\
      volatile space atomic<T> *at, thread T *seen, T value, memory_order, memory_order) {    \\
    Word<T> before = as_type<Word<T>>(*seen);                                                 \\
    Word<T> found = __sync_val_compare_and_swap(                                              \\
        (volatile space Word<T> *)&at->held, before, as_type<Word<T>>(value));                \\
    *seen = as_type<T>(found);                                                                \\
    return found == before;                                                                   \\
  }                                                                                           \\
  template <class T> inline T atomic_exchange_explicit(                                       \\
      volatile space atomic<T> *at, T value, memory_order order) {                            \\
    T before = atomic_load_explicit(at, order);                                               \\
    while (!atomic_compare_exchange_weak_explicit(at, &before, value, order, order)) {}       \\
    return before;                                                                            \\
  }                                                                                           \\
  FETCH(space, add, a + b) FETCH(space, sub, a - b) FETCH(space, and, a & b)                  \\
  FETCH(space, or, a | b) FETCH(space, xor, a ^ b)                                            \\
  FETCH(space, min, b < a ? b : a) FETCH(space, max, a < b ? b : a)
#define FETCH(space, name, expression)                                                        \\
  template <class T> inline T atomic_fetch_##name##_explicit(                                 \\
      volatile space atomic<T> *at, T b, memory_order order) {                                \\
    T a = atomic_load_explicit(at, order), c = expression;                                    \\
    while (!atomic_compare_exchange_weak_explicit(at, &a, c, order, order)) c = expression;   \\
    return a;                                                                                 \\
  }
ATOMICS(device)
ATOMICS(threadgroup)
#undef ATOMICS
#undef FETCH
"""
