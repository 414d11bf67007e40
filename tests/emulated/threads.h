// Threads, warps, blocks and clusters of a launch, for the files of the scheduler.
#pragma once
#include <ucontext.h>

#include <csetjmp>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime.h"

typedef std::vector<u32> Clocks;  // by thread; missing ones are 0
enum State { RUN, AT_BARRIER, AT_WARP, AT_CLUSTER, DONE };

struct Copy {
  u64 to, from;
  int n, given, group;
};
struct Fiber;
struct Warp {
  u32 arrived = 0, live = 0;
  Fiber* lanes[32] = {};
};
struct Meeting {  // a barrier of a block
  int arrived = 0;
  u64 generation = 0;
  std::vector<Fiber*> here;
  int votes[3] = {0, 1, 0}, result[3];  // or, and, count
};
// The last write of a word, and its reads since; one read is held in place, more in a list.
struct Shadow {
  u32 writer = 0, clock = 0, reader = 0, read_clock = 0;
  std::unique_ptr<std::vector<std::pair<u32, u32>>> more;
};
struct Block;
struct Cluster {
  int arrived = 0, live = 0;
  u64 generation = 0;
  Clocks coming, met;
  std::vector<BlockBase*> peers;
};
struct Block : BlockBase {
  int live = 0;
  Meeting barriers[16];
  Cluster* of = nullptr;
  std::unique_ptr<char, void (*)(void*)> memory{nullptr, free};
  std::vector<Shadow> shadow;  // of its shared memory, by word, if no other block can access it
};
struct Fiber : Thread {
  jmp_buf where;
  ucontext_t start;
  State state = RUN;
  bool born = false, waiting = false, has_fenced = false;
  Warp* warp;
  u32 fragments[16];  // registers that other lanes of the warp may read
  u64 wanted = 0;     // the generation of a barrier, or the mask of a warp
  int barrier = 0;
  u64 cluster_wanted = 0;
  u32 clock = 1;
  Clocks known, fenced, read_relaxed;
  std::vector<Copy> copies;
  int groups = 0;
  Block* own() { return (Block*)block; }
};
struct Launch : LaunchBase {
  void (*kernel)(Thread*, char**);
  std::unordered_map<u64, Shadow> shadow;      // by word
  std::unordered_map<u64, Clocks> released;    // by address
  std::vector<std::vector<u32>> plain_shadow;  // by range: two numbers a word, the writer and the reader, each plus 1
  std::vector<Block> blocks;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<std::unique_ptr<Warp>> warps;
  std::vector<std::unique_ptr<Cluster>> clusters;
  jmp_buf loop;
  u64 switches = 0;
  char error[400] = {0};
};

static inline Launch* launch() { return (Launch*)the_launch; }
static inline Fiber* me() { return (Fiber*)the_launch->now; }

// races.cpp
void join(Clocks& into, const Clocks& from);
void join(Clocks& into, Fiber* t);
void meet(Fiber** threads, size_t n);
// meetings.cpp
void leave(Fiber* t);
bool waits(Fiber* t);
