// The world of a translated kernel: registers, checked memory, and calls of the scheduler, which is compiled once.
// Small on purpose, because g++ reads it for each kernel.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
typedef uint8_t u8;
typedef int8_t s8;
typedef uint16_t u16;
typedef int16_t s16;
typedef uint32_t u32;
typedef int32_t s32;
typedef uint64_t u64;
typedef int64_t s64;
typedef float f32;
typedef double f64;
typedef u8 pred;
typedef __int128 s128;
typedef unsigned __int128 u128;

// The low bits of a register, as a type.
template <class T, class R>
static inline T as(R x) {
  T t = 0;
  memcpy(&t, &x, sizeof(T) < sizeof(R) ? sizeof(T) : sizeof(R));
  return t;
}

// Write a register; a narrower integer is extended by its sign or by zeros, as in PTX.
template <class R, class T>
static inline void put(R& r, T x) {
  if constexpr (sizeof(T) < sizeof(R) && std::is_integral<T>::value && std::is_integral<R>::value)
    r = (R)(std::is_signed<T>::value ? (s64)x : (u64)x);
  else
    r = as<R>(x);
}

struct Range {
  char *begin, *end;
};
struct BlockBase {
  int ctaid[3];
  char* shared;
  int rank;           // in its cluster
  BlockBase** peers;  // the blocks of its cluster, or null
};
struct Thread {
  BlockBase* block;
  int lane, id, tid[3];
  char *stack, *stack_end;
};
// What Python asks for; `kernels.py` has the same structure.
struct Given {
  char** params;
  int grid[3], ntid[3];
  int cluster, racecheck;
  u64 shared_bytes;
  Range* ranges;  // the memory that the kernel may access
  u64 num_ranges;
  u64 seed, preempt, limit;
};
struct LaunchBase : Given {
  int plain;  // whether a launch is a loop over its threads
  int unit;   // bytes that one thread accesses at least: 4, or 1 if the kernel has smaller numbers
  Thread* now;
};

extern "C" {
extern LaunchBase* the_launch;
void ptx_fail(const char* problem, u64 a, u64 b) __attribute__((noreturn));
void give_way();
void ptx_race(u64 p, int n, int write, int non_coherent);
void ptx_order(u64 at, int how, int reads, int writes);
void ptx_bar(int id, int count);
int ptx_bar_red(int op, int value);
void ptx_warp(u32 mask);
void ptx_fence();
void ptx_cluster_arrive();
void ptx_cluster_wait();
void ptx_mma(int depth, const u32* a, const u32* b, const f32* c, f32* d);
u32 ptx_shfl(int mode, u32 x, u32 b, u32 c, u32 mask, u8* inside);
u32 ptx_vote(int mode, int value, u32 mask);
u32 ptx_match(u64 value, u32 mask);
u32 ptx_active();
void ptx_cp(u64 to, u64 from, int n, int given);
void ptx_cp_commit();
void ptx_cp_wait(int pending);
int ptx_launch(void (*kernel)(Thread*, char**), const Given* given, int plain, int unit, char* error, u64* switches);
}

static inline u64 next_random() {
  u64& x = the_launch->seed;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return x;
}

// With preemption, let other threads run before about every `preempt`-th access.
static inline void maybe_give_way() {
  if (__builtin_expect(the_launch->preempt != 0, 0) && !the_launch->plain && next_random() % the_launch->preempt == 0)
    give_way();
}

static inline bool is_inside(const char* p, int n, const char* begin, const char* end) {
  return p >= begin && p + n <= end;
}

// `site` is the range that this instruction met last.
static inline void check(Thread* t, u64 a, int n, int& site) {
  const char* p = (const char*)a;
  const LaunchBase* l = the_launch;
  if (__builtin_expect((u64)site < l->num_ranges && is_inside(p, n, l->ranges[site].begin, l->ranges[site].end), 1))
    return;
  for (u64 k = 0; k < l->num_ranges; k++)
    if (is_inside(p, n, l->ranges[k].begin, l->ranges[k].end)) {
      site = (int)k;
      return;
    }
  BlockBase* b = t->block;
  if (is_inside(p, n, b->shared, b->shared + l->shared_bytes) || is_inside(p, n, t->stack, t->stack_end)) return;
  for (int k = 0; b->peers && k < l->cluster; k++)
    if (is_inside(p, n, b->peers[k]->shared, b->peers[k]->shared + l->shared_bytes)) return;
  ptx_fail("out-of-bounds access at", a, n);
}
static inline void check_alignment(u64 a, int n) {
  if (a % n) ptx_fail("misaligned access at", a, n);
}

// An access and its meaning for clocks are one step: others come between before it alone.
template <class T>
static inline T ld(Thread* t, u64 a, int& site, int order = -1, int non_coherent = 0) {
  check(t, a, sizeof(T), site);
  check_alignment(a, sizeof(T));
  maybe_give_way();
  if (__builtin_expect(the_launch->racecheck, 0)) {
    if (order < 0)
      ptx_race(a, sizeof(T), 0, non_coherent);
    else
      ptx_order(a, order, 1, 0);
  }
  T x;
  memcpy(&x, (void*)a, sizeof(T));
  return x;
}
template <class T>
static inline void st(Thread* t, u64 a, T x, int& site, int order = -1) {
  check(t, a, sizeof(T), site);
  check_alignment(a, sizeof(T));
  maybe_give_way();
  if (__builtin_expect(the_launch->racecheck, 0)) {
    if (order < 0)
      ptx_race(a, sizeof(T), 1, 0);
    else
      ptx_order(a, order, 0, 1);
  }
  memcpy((void*)a, &x, sizeof(T));
}
template <class T, class F>
static inline T rmw(Thread* t, u64 a, int& site, int order, F change) {
  check(t, a, sizeof(T), site);
  check_alignment(a, sizeof(T));
  maybe_give_way();
  if (the_launch->racecheck) ptx_order(a, order, 1, 1);
  T old;
  memcpy(&old, (void*)a, sizeof(T));
  T now = change(old);
  memcpy((void*)a, &now, sizeof(T));
  if (!the_launch->plain) give_way();
  return old;
}

// The address of an offset in shared memory; its high byte holds the rank plus 1 of another block of the cluster.
static inline u64 shared_at(Thread* t, u64 given) {
  u32 offset = (u32)given;
  BlockBase* b = t->block;
  if (offset >> 24) {
    u32 rank = (offset >> 24) - 1;
    if (!b->peers || rank >= (u32)the_launch->cluster) ptx_fail("no such block in the cluster", rank, 0);
    b = b->peers[rank];
    offset &= 0xffffff;
  }
  if (offset >= the_launch->shared_bytes) ptx_fail("out-of-bounds offset in shared memory", offset, 0);
  return (u64)b->shared + offset;
}

static inline f32 rna_tf32(f32 x) {
  u32 bits = as<u32>(x);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x1000u) & 0xffffe000u;
  return as<f32>(bits);
}
static inline u32 rn_bf16(f32 x) {
  u32 bits = as<u32>(x);
  return x != x ? 0x7fff : (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
}
template <class T>
static inline T quotient(T a, T b) {
  if (!b) return (T)-1;
  if (std::is_signed<T>::value && b == (T)-1) return (T)(0 - (typename std::make_unsigned<T>::type)a);
  return a / b;
}
template <class T>
static inline T remainder_of(T a, T b) {
  if (!b) return a;
  return std::is_signed<T>::value && b == (T)-1 ? 0 : a % b;
}
static inline u64 reversed_bits(u64 x, int n) {
  u64 r = 0;
  for (int k = 0; k < n; k++) r |= ((x >> k) & 1) << (n - 1 - k);
  return r;
}
