"""Metal's standard library for sources that use more of it than the compiler already brings.

"Metal Shading Language Specification", version 3.2: sections 2.2 (vectors), 2.17 (types), 6.3 to
6.6 (functions of numbers) and 6.16 (traits); `together.py` has the rest. All of it is in a
namespace of its own, which a macro gives the name `metal`, so that nothing collides with what a
compiler brings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpu.sim.metal.together import ATOMICS, GROUPS

MARK: Final = "#pragma gpu_msl_source"
"""What stands between the library and a source."""
_INCLUDE: Final = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*<(?:metal_\w+|simd/simd\.h)>", re.MULTILINE
)
_REAL: Final = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "exp", "exp2"),
    *("fabs", "floor", "log", "log10", "log2", "rint", "round", "sin", "sinh", "sqrt", "tan"),
    *("tanh", "trunc"),
)
_REAL_PAIRS: Final = {"atan2": "atan2f", "copysign": "copysignf", "fmax": "fmaxf",
                      "fmin": "fminf", "fmod": "fmodf", "pow": "powf", "powr": "powf"}  # fmt: skip
_INTEGERS: Final = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong")
_SCALARS: Final = (*_INTEGERS, "half", "float")
_LIMITS: Final = {
    "char": ("-128", "127"), "uchar": ("0", "255"), "short": ("-32768", "32767"),
    "ushort": ("0", "65535"), "int": ("-2147483647 - 1", "2147483647"),
    "uint": ("0", "4294967295u"), "long": ("-9223372036854775807L - 1", "9223372036854775807L"),
    "ulong": ("0", "18446744073709551615UL"), "bool": ("false", "true"),
}  # fmt: skip
_TYPES: Final = """
#undef as_type
template <class To, class From> inline To gpu_msl_bits(From from) {
  return __builtin_bit_cast(To, from);
}
#define as_type gpu_msl_bits
#define METAL_FUNC inline __attribute__((always_inline))
#define __METAL__ 1
#define __METAL_VERSION__ 320
#define METAL_VERSION_MAJOR 3
#define M_E_F 2.71828182845904523536f
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_LN2_F 0.69314718055994530942f
#define M_LN10_F 2.30258509299404568402f
#define M_SQRT2_F 1.41421356237309504880f
#define NAN __builtin_nanf("")
#define INFINITY __builtin_inff()
#define FLT_MAX 3.40282347e+38f
#define FLT_MIN 1.17549435e-38f
typedef uchar2 bool2; typedef uchar3 bool3; typedef uchar4 bool4;
typedef char int8_t; typedef uchar uint8_t; typedef short int16_t; typedef ushort uint16_t;
typedef int int32_t; typedef uint uint32_t; typedef long int64_t; typedef ulong uint64_t;
typedef ulong size_t; typedef long ptrdiff_t;
struct bfloat {
  ushort bits;
  static constexpr ushort rounded(float x) {
    uint word = __builtin_bit_cast(uint, x);
    return x != x ? 0x7fc0 : (word + 0x7fff + (word >> 16 & 1)) >> 16;
  }
  static constexpr float widened(uint bits) { return __builtin_bit_cast(float, bits << 16); }
  bfloat() = default;
  bfloat(const bfloat &) = default;
  constexpr bfloat(const constant bfloat &from) : bits(from.bits) {}
  constexpr bfloat(float x) : bits(rounded(x)) {}
  constexpr bfloat(float x) constant : bits(rounded(x)) {}
  constexpr operator float() const { return widened(bits); }
  constexpr operator float() const constant { return widened(bits); }
};
template <> inline ushort gpu_msl_bits<ushort, bfloat>(bfloat from) { return from.bits; }
template <> inline bfloat gpu_msl_bits<bfloat, ushort>(ushort from) {
  bfloat made;
  made.bits = from;
  return made;
}
#define metal gpu_msl_metal
namespace metal {
template <class T, int N> using Vector = T __attribute__((ext_vector_type(N)));
template <class T> struct Lane { typedef T type; };
template <> struct Lane<bfloat> { typedef ushort type; };
template <> struct Lane<bool> { typedef uchar type; };
template <class T, int N> using vec = Vector<typename Lane<T>::type, N>;
template <class T, int N, class... From> constexpr vec<T, N> vec_of(From... from) {
  return vec<T, N>{T(from)...};
}
template <class T, int N, class From> constexpr vec<T, N> vec_of(From from) {
  return (vec<T, N>)(from);
}
template <class T> using uniform = T;
template <class T> constexpr T make_uniform(T x) { return x; }
template <int Number, class T> inline threadgroup T &held() {
  static __global T kept;
  return *(threadgroup T *)(ulong)&kept;
}

template <class T, T v> struct integral_constant {
  static constexpr constant T value = v;
  typedef T value_type;
  typedef integral_constant type;
  constexpr operator T() const thread { return v; }
};
template <bool v> using bool_constant = integral_constant<bool, v>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;
template <bool, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool v, class T = void> using enable_if_t = typename enable_if<v, T>::type;
template <bool, class A, class B> struct conditional { typedef A type; };
template <class A, class B> struct conditional<false, A, B> { typedef B type; };
template <bool v, class A, class B> using conditional_t = typename conditional<v, A, B>::type;
template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};
template <class A, class B> constexpr constant bool is_same_v = is_same<A, B>::value;
template <class... B> struct disjunction : bool_constant<(B::value || ...)> {};
template <class... B> struct conjunction : bool_constant<(B::value && ...)> {};
template <class... B> using _disjunction = disjunction<B...>;
template <class T> struct remove_const { typedef T type; };
template <class T> struct remove_const<const T> { typedef T type; };
template <class T> struct remove_volatile { typedef T type; };
template <class T> struct remove_volatile<volatile T> { typedef T type; };
template <class T> struct remove_reference { typedef T type; };
template <class T> struct remove_reference<thread T &> { typedef T type; };
template <class T> struct remove_reference<device T &> { typedef T type; };
template <class T> struct remove_reference<constant T &> { typedef T type; };
template <class T> struct remove_reference<threadgroup T &> { typedef T type; };
template <class T> struct remove_addrspace { typedef T type; };
template <class T> struct remove_addrspace<thread T> { typedef T type; };
template <class T> struct remove_addrspace<device T> { typedef T type; };
template <class T> struct remove_addrspace<constant T> { typedef T type; };
template <class T> struct remove_addrspace<threadgroup T> { typedef T type; };
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> using remove_addrspace_t = typename remove_addrspace<T>::type;
template <class T> using remove_cv_t =
    typename remove_const<typename remove_volatile<T>::type>::type;
template <class T> struct is_floating_point : false_type {};
template <> struct is_floating_point<half> : true_type {};
template <> struct is_floating_point<float> : true_type {};
template <> struct is_floating_point<bfloat> : true_type {};
template <class T> struct is_integral : false_type {};
template <> struct is_integral<bool> : true_type {};
template <class T> constexpr constant bool is_floating_point_v = is_floating_point<T>::value;
INTEGRAL
template <class T> constexpr constant bool is_integral_v = is_integral<T>::value;
template <class T> struct is_arithmetic
    : bool_constant<is_integral<T>::value || is_floating_point<T>::value> {};
template <class T> constexpr constant bool is_arithmetic_v = is_arithmetic<T>::value;
template <class T> struct is_signed : bool_constant<(T(-1) < T(0))> {};
template <class T> constexpr constant bool is_signed_v = is_signed<T>::value;
template <class T> constexpr constant bool is_unsigned_v = !is_signed<T>::value;
template <class A, class B> constexpr constant bool is_convertible_v = __is_convertible_to(A, B);
template <class T> struct numeric_limits;
template <> struct numeric_limits<float> {
  static constexpr float max() { return 3.40282347e+38f; }
  static constexpr float min() { return 1.17549435e-38f; }
  static constexpr float lowest() { return -max(); }
  static constexpr float epsilon() { return 1.1920929e-7f; }
  static constexpr float infinity() { return __builtin_inff(); }
  static constexpr float quiet_NaN() { return __builtin_nanf(""); }
};
template <> struct numeric_limits<half> {
  static constexpr half max() { return (half)65504.0f; }
  static constexpr half min() { return (half)6.103515625e-5f; }
  static constexpr half lowest() { return (half)-65504.0f; }
  static constexpr half epsilon() { return (half)0.0009765625f; }
  static constexpr half infinity() { return (half)__builtin_inff(); }
  static constexpr half quiet_NaN() { return (half)__builtin_nanf(""); }
};
template <> struct numeric_limits<bfloat> {
  static constexpr bfloat max() { return bfloat(3.38953139e+38f); }
  static constexpr bfloat min() { return bfloat(1.17549435e-38f); }
  static constexpr bfloat lowest() { return bfloat(-3.38953139e+38f); }
  static constexpr bfloat epsilon() { return bfloat(0.0078125f); }
  static constexpr bfloat infinity() { return bfloat(__builtin_inff()); }
  static constexpr bfloat quiet_NaN() { return bfloat(__builtin_nanf("")); }
};
struct os_log {
  constexpr os_log(const constant char *, const constant char *) constant {}
  template <class... T> void log_debug(const constant char *, T...) const constant {}
  template <class... T> void log_info(const constant char *, T...) const constant {}
  template <class... T> void log_error(const constant char *, T...) const constant {}
};
template <class T, size_t N> struct array {
  T held[N];
  T operator[](size_t at) const { return held[at]; }
  thread T &operator[](size_t at) thread { return held[at]; }
};
"""
_FLOATS: Final = """
inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
inline half rsqrt(half x) { return (half)rsqrt((float)x); }
#define ALSO(space) namespace space { using gpu_msl_metal::rsqrt; using gpu_msl_metal::min; \\
  using gpu_msl_metal::max; using gpu_msl_metal::clamp; using gpu_msl_metal::abs; }
ALSO(precise)
ALSO(fast)
#undef ALSO
inline float exp10(float x) { return __builtin_powf(10.0f, x); }
inline float fract(float x) {
  return __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f);
}
inline float sinpi(float x) { return __builtin_sinf(3.14159265358979f * x); }
inline float cospi(float x) { return __builtin_cosf(3.14159265358979f * x); }
inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline half fma(half x, half y, half z) { return (half)__builtin_fmaf(x, y, z); }
inline float ldexp(float x, int n) { return __builtin_ldexpf(x, n); }
inline float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? x : 0.0f; }
inline bool isnan(float x) { return __builtin_isnan(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }
inline bool signbit(float x) { return as_type<uint>(x) >> 31; }
inline float saturate(float x) { return __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f); }
inline float mix(float x, float y, float a) { return x + (y - x) * a; }
inline float step(float edge, float x) { return x < edge ? 0.0f : 1.0f; }
inline float smoothstep(float low, float high, float x) {
  float t = saturate((x - low) / (high - low));
  return t * t * (3 - 2 * t);
}
template <class T> inline T select(T no, T yes, bool which) { return which ? yes : no; }
template <class T, int N> inline T dot(Vector<T, N> x, Vector<T, N> y) {
  T sum = x[0] * y[0];
  for (int i = 1; i < N; i++) sum += x[i] * y[i];
  return sum;
}
template <class T, int N> inline T length_squared(Vector<T, N> x) { return dot(x, x); }
template <class T, int N> inline T length(Vector<T, N> x) { return __builtin_sqrtf(dot(x, x)); }
template <class T, int N> inline T distance(Vector<T, N> x, Vector<T, N> y) {
  return length(x - y);
}
template <class T, int N> inline Vector<T, N> normalize(Vector<T, N> x) { return x / length(x); }
template <class T, int Columns, int Rows> struct matrix {
  Vector<T, Rows> columns[Columns];
  Vector<T, Rows> operator[](int at) const { return columns[at]; }
  thread Vector<T, Rows> &operator[](int at) thread { return columns[at]; }
};
template <class T, int C, int R> inline Vector<T, R> operator*(matrix<T, C, R> m, Vector<T, C> v) {
  Vector<T, R> sum = m.columns[0] * v[0];
  for (int i = 1; i < C; i++) sum += m.columns[i] * v[i];
  return sum;
}
template <class T, int C, int R> inline Vector<T, C> operator*(Vector<T, R> v, matrix<T, C, R> m) {
  Vector<T, C> made;
  for (int i = 0; i < C; i++) made[i] = dot(v, m.columns[i]);
  return made;
}
template <class T, int C, int K, int R>
inline matrix<T, C, R> operator*(matrix<T, K, R> a, matrix<T, C, K> b) {
  matrix<T, C, R> made;
  for (int i = 0; i < C; i++) made.columns[i] = a * b.columns[i];
  return made;
}
template <class T, int C, int R> inline matrix<T, R, C> transpose(matrix<T, C, R> m) {
  matrix<T, R, C> made;
  for (int i = 0; i < R; i++)
    for (int j = 0; j < C; j++) made.columns[i][j] = m.columns[j][i];
  return made;
}
typedef matrix<float, 2, 2> float2x2;
typedef matrix<float, 3, 3> float3x3;
typedef matrix<float, 4, 4> float4x4;
template <class T, class U> inline T mulhi(T x, U y) {
  return (T)(((__int128)x * (__int128)y) >> (8 * sizeof(T)));
}
"""


def _overloads() -> Iterator[str]:
    """Functions of numbers for all types that have them."""
    yield "#define EACH_FLOAT(name) \\"
    yield "  inline float name(float x) { return __builtin_##name##f(x); } \\"
    yield "  inline half name(half x) { return (half)__builtin_##name##f((float)x); } \\"
    yield "  template <class T, int N> inline Vector<T, N> name(Vector<T, N> x) { \\"
    yield "    for (int i = 0; i < N; i++) x[i] = name(x[i]); return x; }"
    every = "\n".join(f"EACH_FLOAT({name})" for name in _REAL)
    for space in ("precise", "fast"):
        yield f"namespace {space} {{\n{every}\n}}"
    yield every
    for name, function in _REAL_PAIRS.items():
        for kind in ("float", "half"):
            call = f"__builtin_{function}((float)x, (float)y)"
            body = f"inline {kind} {name}({kind} x, {kind} y) {{ return ({kind}){call}; }}"
            yield f"{body} namespace precise {{ {body} }} namespace fast {{ {body} }}"
    for kind in _SCALARS:
        yield f"inline {kind} min({kind} x, {kind} y) {{ return y < x ? y : x; }}"
        yield f"inline {kind} max({kind} x, {kind} y) {{ return x < y ? y : x; }}"
        yield (
            f"inline {kind} clamp({kind} x, {kind} low, {kind} high)"
            " { return min(max(x, low), high); }"
        )
        yield f"inline {kind} abs({kind} x) {{ return x < 0 ? -x : x; }}"
    for name in ("min", "max"):
        taken = "Vector<T, N> x, Vector<T, N> y"
        yield f"template <class T, int N> inline Vector<T, N> {name}({taken}) {{"
        yield f"  for (int i = 0; i < N; i++) x[i] = {name}(x[i], y[i]); return x; }}"
    for kind in _INTEGERS:
        bits = f"8 * sizeof({kind})"
        word = f"(ulong)x & (~0ul >> (64 - {bits}))"
        yield f"inline {kind} popcount({kind} x) {{ return __builtin_popcountl({word}); }}"
        yield (
            f"inline {kind} clz({kind} x)"
            f" {{ return {word} ? __builtin_clzl({word}) - 64 + {bits} : {bits}; }}"
        )
        yield f"inline {kind} ctz({kind} x) {{ return {word} ? __builtin_ctzl({word}) : {bits}; }}"


def _numeric_limits() -> Iterator[str]:
    for kind, (low, high) in _LIMITS.items():
        yield f"template <> struct numeric_limits<{kind}> {{"
        for name, value in (("min", low), ("lowest", low), ("max", high)):
            yield f"  static constexpr {kind} {name}() {{ return {value}; }}"
        yield "};"


def _library() -> str:
    integral = "\n".join(
        f"template <> struct is_integral<{kind}> : true_type {{}};" for kind in _INTEGERS
    )
    return "\n".join(
        [
            'extern "C" void gpu_msl_simdgroup_barrier(uint flags);',
            'extern "C" void gpu_msl_gather(uint value, thread uint *all);',
            _TYPES.replace("INTEGRAL", integral),
            *_numeric_limits(),
            *_overloads(),
            *(_FLOATS, GROUPS, ATOMICS),
            "}",
            "#undef REDUCTION",
            "#undef PREFIX",
            "#undef MATRIX_MEMORY",
            "#undef EACH_FLOAT",
        ]
    )


LIBRARY: Final = _library()
_FUNCTIONS: Final = (
    *_REAL, *_REAL_PAIRS, "rsqrt", "exp10", "fract", "sinpi", "cospi", "ldexp", "sign", "isnan",
    "isinf", "isfinite", "signbit", "saturate", "mix", "step", "smoothstep", "select", "dot",
    "length", "distance", "normalize", "mulhi", "min", "max", "clamp", "abs", "popcount", "clz",
    "ctz",
)  # fmt: skip
_BROUGHT: Final = ("fabs", "floor", "rint", "trunc")
_USES: Final = re.compile(
    r"\bsimd_(?!shuffle_xor\b)\w+|\bsimdgroup_(?!index_in_threadgroup\b)\w+|<simd/"
    r"|\bhost_name\b|\bmake_filled_simdgroup_matrix\b|\batomic_\w+|\bvec<|\bnumeric_limits\b|\bMETAL_FUNC\b"
    r"|\bfast::|\bprecise::(?!sqrt\b)|\bu?int(?:8|16|32|64)_t\b|\bbfloat\b|\bbool[234]\b"
    r"|\bfloat[234]x[234]\b|\b(?:INFINITY|NAN|FLT_MAX|FLT_MIN|M_\w+_F|size_t)\b"
    rf"|(?<!precise::)\b(?:{'|'.join(each for each in _FUNCTIONS if each not in _BROUGHT)})\("
)
"""What whoever compiles MSL for the model need not have in its own library."""


def with_stdlib(source: str) -> str:
    """A source behind the library where it uses what the compiler's own lacks, else as it is.

    Lines are counted as before.
    """
    if not _USES.search(source):
        return source
    return f'{LIBRARY}\n{MARK}\n#line 1 "source0"\n{_INCLUDE.sub("", source)}'
