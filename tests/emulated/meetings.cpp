// Where threads meet: barriers of blocks, warps and clusters, votes, shuffles, products of a warp, asynchronous copies.
#include <cstdlib>

#include "threads.h"

static void open(Meeting& m) {
  meet(m.here.data(), m.here.size());
  m.here.clear();
  m.arrived = 0;
  memcpy(m.result, m.votes, sizeof m.votes);
  m.votes[0] = 0, m.votes[1] = 1, m.votes[2] = 0;
  m.generation++;
}

extern "C" void ptx_bar(int id, int count) {
  Fiber* t = me();
  Meeting& m = t->own()->barriers[id];
  u64 generation = m.generation;
  m.here.push_back(t);
  if (++m.arrived >= (count ? count : t->own()->live)) {
    open(m);
    give_way();
    return;
  }
  t->wanted = generation;
  t->barrier = id;
  while (m.generation == generation) {
    t->state = AT_BARRIER;
    give_way();
  }
  t->state = RUN;
}

extern "C" int ptx_bar_red(int op, int value) {
  Meeting& m = me()->own()->barriers[0];
  m.votes[0] |= !!value;
  m.votes[1] &= !!value;
  m.votes[2] += !!value;
  ptx_bar(0, 0);
  return m.result[op];
}

static void open_warp(Warp* w, u32 mask) {
  Fiber* here[32];
  for (int k = 0; k < 32; k++) {
    here[k] = mask >> k & 1 ? w->lanes[k] : nullptr;
    if (here[k]) here[k]->waiting = false;
  }
  w->arrived &= ~mask;
  meet(here, 32);
}

extern "C" void ptx_warp(u32 mask) {
  Fiber* t = me();
  Warp* w = t->warp;
  if (!(mask >> t->lane & 1)) ptx_fail("a lane that its own mask leaves out", t->lane, mask);
  w->arrived |= 1u << t->lane;
  t->waiting = true;
  t->wanted = mask;
  u32 live = mask & w->live;
  if ((w->arrived & live) == live) {
    open_warp(w, live);
    return;
  }
  while (t->waiting) {
    t->state = AT_WARP;
    give_way();
  }
  t->state = RUN;
}

static void open_cluster(Cluster* c) {
  c->arrived = 0;
  c->generation++;
  c->met.swap(c->coming);
  c->coming.clear();
}

extern "C" void ptx_cluster_arrive() {
  Fiber* t = me();
  Cluster* c = t->own()->of;
  if (!c) ptx_fail("a barrier of a cluster in a launch without clusters", 0, 0);
  t->cluster_wanted = c->generation;
  if (the_launch->racecheck) {
    join(c->coming, t);
    t->clock++;
  }
  if (++c->arrived >= c->live) open_cluster(c);
}

extern "C" void ptx_cluster_wait() {
  Fiber* t = me();
  Cluster* c = t->own()->of;
  while (c->generation == t->cluster_wanted) {
    t->state = AT_CLUSTER;
    give_way();
  }
  t->state = RUN;
  if (the_launch->racecheck) join(t->known, c->met);
}

// Whether a thread cannot run until others arrive.
bool waits(Fiber* t) {
  if (t->state == AT_BARRIER) return t->own()->barriers[t->barrier].generation == t->wanted;
  if (t->state == AT_WARP) return t->waiting;
  return t->state == AT_CLUSTER && t->own()->of->generation == t->cluster_wanted;
}

// A thread has ended: open the meetings that waited for it alone.
void leave(Fiber* t) {
  t->state = DONE;
  Block* b = t->own();
  b->live--;
  t->warp->live &= ~(1u << t->lane);
  for (auto& m : b->barriers)
    if (m.arrived && m.arrived >= b->live) open(m);
  Warp* w = t->warp;
  for (Fiber* lane : w->lanes)
    if (lane && lane->waiting) {
      u32 live = (u32)lane->wanted & w->live;
      if ((w->arrived & live) == live) open_warp(w, live);
    }
  Cluster* c = b->of;
  if (c && --c->live && c->arrived >= c->live) open_cluster(c);
}

extern "C" u32 ptx_shfl(int mode, u32 x, u32 b, u32 c, u32 mask, u8* inside) {  // up, down, bfly, idx
  Fiber* t = me();
  Warp* w = t->warp;
  t->fragments[0] = x;
  ptx_warp(mask);
  int lane = t->lane, segment = (c >> 8) & 31, clamp = c & 31;
  int first = lane & segment, last = first | (clamp & ~segment), from = first | (b & ~segment);
  if (mode == 0) from = lane - (int)b;
  if (mode == 1) from = lane + (int)b;
  if (mode == 2) from = lane ^ (int)b;
  bool found = mode == 0 ? from >= last : from <= last;
  if (!found) from = lane;
  if (inside) *inside = found;
  if (!(mask >> from & 1)) ptx_fail("a shuffle from a lane that the mask leaves out", from, mask);
  u32 result = w->lanes[from] ? w->lanes[from]->fragments[0] : x;
  ptx_warp(mask);
  return result;
}

extern "C" u32 ptx_vote(int mode, int value, u32 mask) {  // all, any, uni, ballot
  Fiber* t = me();
  Warp* w = t->warp;
  t->fragments[0] = !!value;
  ptx_warp(mask);
  u32 ballot = 0, live = mask & w->live;
  for (int k = 0; k < 32; k++)
    if (live >> k & 1) ballot |= w->lanes[k]->fragments[0] << k;
  ptx_warp(mask);
  bool answers[3] = {ballot == live, ballot != 0, ballot == live || !ballot};
  return mode < 3 ? answers[mode] : ballot;
}

extern "C" u32 ptx_match(u64 value, u32 mask) {
  Fiber* t = me();
  Warp* w = t->warp;
  memcpy(t->fragments, &value, 8);
  ptx_warp(mask);
  u32 same = 0, live = mask & w->live;
  for (int k = 0; k < 32; k++)
    if (live >> k & 1 && !memcmp(w->lanes[k]->fragments, &value, 8)) same |= 1u << k;
  ptx_warp(mask);
  return same;
}

extern "C" u32 ptx_active() { return me()->warp->live; }

static f32 of_tf32(u32 x) { return as<f32>(x & 0xffffe000u); }
static f32 of_bf16(u32 x) { return as<f32>((u32)(x << 16)); }

// D = A B + C, m16n8k8 of tf32 or m16n8k16 of bf16; fragments as the PTX manual lays them out, sums in float64.
extern "C" void ptx_mma(int depth, const u32* a, const u32* b, const f32* c, f32* d) {
  Fiber* t = me();
  Fiber** lanes = t->warp->lanes;
  memcpy(t->fragments, a, 16);
  memcpy(t->fragments + 4, b, 8);
  ptx_warp(~0u);
  for (int e = 0; e < 4; e++) {
    int row = (t->lane >> 2) + (e >= 2 ? 8 : 0), column = (t->lane & 3) * 2 + (e & 1);
    f64 sum = c[e];
    for (int k = 0; k < depth; k++) {
      bool is_bf16 = depth == 16, high = k & 1;
      int place = is_bf16 ? (k % 8) / 2 : k % 4, half = is_bf16 ? k >= 8 : k >= 4;
      u32 x = lanes[(row % 8) * 4 + place]->fragments[(row >= 8) + 2 * half];
      u32 y = lanes[column * 4 + place]->fragments[4 + half];
      if (is_bf16)
        sum += (f64)of_bf16(high ? x >> 16 : x & 0xffff) * (f64)of_bf16(high ? y >> 16 : y & 0xffff);
      else
        sum += (f64)of_tf32(x) * (f64)of_tf32(y);
    }
    d[e] = (f32)sum;
  }
  ptx_warp(~0u);
}

// An asynchronous copy happens when it is waited for; until then its place holds no number.
extern "C" void ptx_cp(u64 to, u64 from, int n, int given) {
  if (to % n || from % n) ptx_fail("misaligned asynchronous copy", to, n);
  memset((void*)to, 0xff, n);
  me()->copies.push_back({to, from, n, given, me()->groups});
}
extern "C" void ptx_cp_commit() { me()->groups++; }
extern "C" void ptx_cp_wait(int pending) {  // -1: all
  Fiber* t = me();
  std::vector<Copy> rest;
  for (auto& c : t->copies) {
    if (pending >= 0 && c.group >= t->groups - pending) {
      rest.push_back(c);
      continue;
    }
    if (the_launch->racecheck) {
      for (int k = 0; k < c.given; k += 4) ptx_race(c.from + k, 4, 0, 0);
      for (int k = 0; k < c.n; k += 4) ptx_race(c.to + k, 4, 1, 0);
    }
    memset((void*)c.to, 0, c.n);
    memcpy((void*)c.to, (void*)c.from, c.given);
  }
  t->copies.swap(rest);
}
