// The threads that a program runs on.
#ifndef EDGEPFL_THREADS_HPP
#define EDGEPFL_THREADS_HPP

#include <cstdint>

#include <executorch/extension/threadpool/threadpool_guard.h>

namespace edgepfl {

// As long as it lives, this thread's programs are loaded for and run on that many threads.
class Threads {
 public:
  // Throws Failure: programs with another number, and more than one, are loaded already.
  explicit Threads(uint32_t count);
  ~Threads();
  Threads(const Threads &) = delete;
  Threads &operator=(const Threads &) = delete;

 private:
  bool before_;
};

}  // namespace edgepfl

#endif
