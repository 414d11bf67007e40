// Races, by vector clocks: two threads, one word, one of them writes, and no barrier or release and acquire between.
// A word has 4 bytes, or 1 in a kernel that accesses smaller numbers.
#include <algorithm>

#include "threads.h"

static const char* WRITE_AFTER_WRITE = "race: write after an unordered write of thread, word";
static const char* READ_AFTER_WRITE = "race: read after an unordered write of thread, word";
static const char* WRITE_AFTER_READ = "race: write after an unordered read of thread, word";
static const char* NON_COHERENT = "a non-coherent load of a word that this launch wrote: thread, word";
static const u32 MANY = ~0u;  // readers

void join(Clocks& into, const Clocks& from) {
  if (into.size() < from.size()) into.resize(from.size(), 0);
  for (size_t k = 0; k < from.size(); k++) into[k] = std::max(into[k], from[k]);
}
void join(Clocks& into, Fiber* t) {
  join(into, t->known);
  if (into.size() <= (size_t)t->id) into.resize(t->id + 1, 0);
  into[t->id] = std::max(into[t->id], t->clock);
}
void meet(Fiber** threads, size_t n) {
  if (!the_launch->racecheck) return;
  Clocks all;
  for (size_t k = 0; k < n; k++)
    if (threads[k]) join(all, threads[k]);
  for (size_t k = 0; k < n; k++)
    if (threads[k]) {
      threads[k]->known = all;
      threads[k]->clock++;
    }
}

// Whether the clock of another thread, or of `t` itself, is in the past of `t`.
static bool knows(Fiber* t, u32 other, u32 clock) {
  return (int)other == t->id || (other < t->known.size() && t->known[other] >= clock);
}

// A launch without meetings: no two threads are ordered, so one number a word is enough.
static void plain_race(u64 p, int n, int write, int non_coherent) {
  Launch* l = launch();
  u32 id = l->now->id + 1;
  for (u64 r = 0; r < l->num_ranges; r++) {
    Range& x = l->ranges[r];
    if ((char*)p < x.begin || (char*)p >= x.end) continue;
    std::vector<u32>& seen = l->plain_shadow[r];
    u64 first = (u64)x.begin / l->unit;
    if (seen.empty()) seen.assign(2 * ((u64)x.end / l->unit + 1 - first), 0);
    for (u64 w = p / l->unit; w <= (p + n - 1) / l->unit; w++) {
      u32 &writer = seen[2 * (w - first)], &reader = seen[2 * (w - first) + 1];
      if (writer && writer != id) ptx_fail(write ? WRITE_AFTER_WRITE : READ_AFTER_WRITE, writer - 1, w * l->unit);
      if (non_coherent && writer) ptx_fail(NON_COHERENT, writer - 1, w * l->unit);
      if (write && reader && reader != id) ptx_fail(WRITE_AFTER_READ, reader - 1, w * l->unit);
      if (write)
        writer = id;
      else
        reader = reader && reader != id ? MANY : id;
    }
    return;
  }
}

static void note_write(Fiber* t, Shadow& s, u64 at) {
  if (s.reader && !knows(t, s.reader - 1, s.read_clock)) ptx_fail(WRITE_AFTER_READ, s.reader - 1, at);
  if (s.more) {
    for (auto& [reader, clock] : *s.more)
      if (!knows(t, reader, clock)) ptx_fail(WRITE_AFTER_READ, reader, at);
    s.more->clear();
  }
  s.reader = 0;
  s.writer = t->id + 1;
  s.clock = t->clock;
}

static void note_read(Fiber* t, Shadow& s) {
  if (!s.reader || knows(t, s.reader - 1, s.read_clock)) {  // ordered before: this read stands for it
    s.reader = t->id + 1;
    s.read_clock = t->clock;
    return;
  }
  if (!s.more) s.more = std::make_unique<std::vector<std::pair<u32, u32>>>();
  for (auto& [reader, clock] : *s.more)
    if ((int)reader == t->id) {
      clock = t->clock;
      return;
    }
  s.more->push_back({(u32)t->id, t->clock});
}

extern "C" void ptx_race(u64 p, int n, int write, int non_coherent) {
  Fiber* t = me();
  if (p >= (u64)t->stack && p < (u64)t->stack_end) return;
  if (the_launch->plain) return plain_race(p, n, write, non_coherent);
  u64 unit = the_launch->unit, begin = (u64)t->block->shared, size = the_launch->shared_bytes;
  bool is_own = !t->block->peers && p - begin < size;
  std::vector<Shadow>* shared = is_own ? &t->own()->shadow : nullptr;
  if (shared && shared->empty()) *shared = std::vector<Shadow>(size / unit + 1);
  for (u64 w = p / unit; w <= (p + n - 1) / unit; w++) {
    Shadow& s = shared ? (*shared)[w - begin / unit] : launch()->shadow[w];
    if (s.writer && !knows(t, s.writer - 1, s.clock))
      ptx_fail(write ? WRITE_AFTER_WRITE : READ_AFTER_WRITE, s.writer - 1, w * unit);
    if (non_coherent && s.writer) ptx_fail(NON_COHERENT, s.writer - 1, w * unit);
    if (write)
      note_write(t, s, w * unit);
    else
      note_read(t, s);
  }
}

// `how`: 1 acquire, 2 release, 3 both, 0 relaxed, which a fence before or after makes the one or the other.
extern "C" void ptx_order(u64 where, int how, int reads, int writes) {
  if (the_launch->plain) return;
  Fiber* t = me();
  Clocks& released = launch()->released[where];
  if (reads) join(how & 1 ? t->known : t->read_relaxed, released);
  if (!writes) return;
  if (how & 2) {
    join(released, t);
    t->clock++;
  } else if (t->has_fenced) {
    join(released, t->fenced);
  }
}

extern "C" void ptx_fence() {
  if (the_launch->plain) return;
  Fiber* t = me();
  if (the_launch->racecheck) {
    join(t->known, t->read_relaxed);
    t->fenced = t->known;
    join(t->fenced, t);
    t->has_fenced = true;
    t->clock++;
  }
  maybe_give_way();
}
