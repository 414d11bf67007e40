// Run a launch on one thread of the operating system: a fiber for each CUDA thread, all blocks live at once, in any
// order.  Kernels whose threads never meet run as a plain loop.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "threads.h"

static const size_t STACK = 1 << 17;  // bytes of a fiber
extern "C" {
LaunchBase* the_launch;
}

extern "C" void ptx_fail(const char* problem, u64 a, u64 b) {
  Thread* t = the_launch->now;
  snprintf(launch()->error, sizeof launch()->error, "%s (%llu, %llu) by thread %d of block %d", problem,
           (unsigned long long)a, (unsigned long long)b, t->tid[0], t->block->ctaid[0]);
  longjmp(launch()->loop, 2);
}

extern "C" void give_way() {
  Fiber* t = me();
  if (!_setjmp(t->where)) _longjmp(launch()->loop, 1);
}

static void enter() {
  Fiber* t = me();
  launch()->kernel(t, launch()->params);
  leave(t);
  _longjmp(launch()->loop, 1);
}

static void place(int* at, int number, const int* sizes) {
  at[0] = number % sizes[0];
  at[1] = number / sizes[0] % sizes[1];
  at[2] = number / sizes[0] / sizes[1];
}
static int volume(const int* sizes) { return sizes[0] * sizes[1] * sizes[2]; }

// One thread after another, on this stack; backwards for odd seeds.
static void run_plain(Launch& l) {
  Thread t;
  BlockBase b;
  std::vector<char> shared(l.shared_bytes + 16);
  b.peers = nullptr;
  b.shared = shared.data();
  b.rank = 0;
  t.block = &b;
  t.stack_end = (char *)__builtin_frame_address(0);
  t.stack = t.stack_end - (1 << 20);
  l.now = &t;
  s64 count = volume(l.ntid), n = (s64)volume(l.grid) * count;
  for (s64 k = 0; k < n; k++) {
    t.id = (int)(l.seed & 1 ? n - 1 - k : k);
    place(b.ctaid, (int)(t.id / count), l.grid);
    place(t.tid, (int)(t.id % count), l.ntid);
    t.lane = (int)(t.id % count) % 32;
    l.kernel(&t, l.params);
  }
}

static void make_block(Launch& l, int number, char* stacks) {
  Block& b = l.blocks[number];
  int count = volume(l.ntid);
  place(b.ctaid, number, l.grid);
  u64 size = (l.shared_bytes + 1023) / 1024 * 1024 + 1024;
  b.memory.reset((char*)aligned_alloc(1024, size));
  b.shared = b.memory.get();
  memset(b.shared, 0xff, size);
  b.live = count;
  b.rank = 0;
  b.peers = nullptr;
  if (l.cluster) {
    b.rank = number % l.cluster;
    if (!b.rank) l.clusters.push_back(std::make_unique<Cluster>());
    b.of = l.clusters.back().get();
    b.of->peers.push_back(&b);
    b.of->live += count;
  }
  for (int i = 0; i < count; i++) {
    if (i % 32 == 0) l.warps.push_back(std::make_unique<Warp>());
    l.fibers.push_back(std::make_unique<Fiber>());
    Fiber* t = l.fibers.back().get();
    t->block = &b;
    t->id = number * count + i;
    t->lane = i % 32;
    place(t->tid, i, l.ntid);
    t->warp = l.warps.back().get();
    t->warp->lanes[t->lane] = t;
    t->warp->live |= 1u << t->lane;
    t->stack = stacks + STACK * t->id;
    t->stack_end = t->stack + STACK;
  }
}

static void begin(Fiber* t) {
  t->born = true;
  getcontext(&t->start);
  t->start.uc_stack.ss_sp = t->stack;
  t->start.uc_stack.ss_size = STACK;
  t->start.uc_link = nullptr;
  makecontext(&t->start, enter, 0);
  setcontext(&t->start);
}

// The next thread in turn that can run, or null; threads that have ended are taken out on the way.
static Fiber *next(std::vector<Fiber *> &alive, size_t &turn) {
  for (size_t tried = 0; tried < alive.size();) {
    size_t i = (turn + tried) % alive.size();
    if (alive[i]->state == DONE) {
      alive[i] = alive.back();
      alive.pop_back();
      turn = i;
      tried = 0;
    } else if (waits(alive[i])) {
      tried++;
    } else {
      turn = i + 1;
      return alive[i];
    }
  }
  return nullptr;
}

static int run_fibers(Launch& l) {
  // Static: a jump back to the loop must not restore them.
  static std::vector<Fiber*> alive;
  static size_t turn;
  alive.clear();
  turn = 0;
  for (auto& t : l.fibers) alive.push_back(t.get());
  if (l.seed)
    for (size_t i = alive.size(); i > 1; i--) std::swap(alive[i - 1], alive[next_random() % i]);
  if (_setjmp(l.loop) == 2) return 1;
  if (++l.switches > l.limit) {
    snprintf(l.error, sizeof l.error, "no end after %llu switches: threads wait, or the limit is too low",
             (unsigned long long)l.limit);
    return 1;
  }
  Fiber* t = next(alive, turn);
  if (!t && alive.empty()) return 0;
  if (!t) {
    snprintf(l.error, sizeof l.error, "deadlock: every live thread waits for others");
    return 1;
  }
  l.now = t;
  if (!t->born) begin(t);
  _longjmp(t->where, 1);
}

static int run_all(Launch& l) {
  int num_blocks = volume(l.grid), count = volume(l.ntid);
  size_t size = STACK * (size_t)num_blocks * count;
  char* stacks = (char*)mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  l.blocks = std::vector<Block>(num_blocks);
  for (int b = 0; b < num_blocks; b++) make_block(l, b, stacks);
  if (l.cluster)
    for (auto& b : l.blocks) b.peers = b.of->peers.data();
  int failed = run_fibers(l);
  munmap(stacks, size);
  return failed;
}

extern "C" int ptx_launch(void (*kernel)(Thread*, char**), const Given* given, int plain, int unit, char* error, u64* switches) {
  Launch l;
  the_launch = &l;
  (Given&)l = *given;
  l.kernel = kernel;
  l.plain = plain;
  l.unit = unit;
  l.plain_shadow.resize(l.num_ranges);
  int failed = 1;
  if (!plain) {
    l.seed = l.seed ? l.seed * 2654435761u + 88172645463325252ull : 0;
    if (l.preempt && !l.seed) l.seed = 1;
    failed = run_all(l);
  } else if (!_setjmp(l.loop)) {
    run_plain(l);
    failed = 0;
  }
  memcpy(error, l.error, sizeof l.error);
  *switches = l.switches;
  return failed;
}
