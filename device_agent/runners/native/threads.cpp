#include "threads.hpp"

#include <cstddef>
#include <mutex>
#include <string>

#include "program.hpp"

// The wheel has this class but not its header; members that are called and none that is laid out.
namespace executorch::extension::threadpool {
class ThreadPool final {
 public:
  size_t get_thread_count() const;
  bool _unsafe_reset_threadpool(uint32_t new_thread_count);
};
ThreadPool *get_threadpool();
}  // namespace executorch::extension::threadpool

namespace edgepfl {
namespace {

namespace threadpool = executorch::extension::threadpool;

constexpr uint32_t kLimit = 256;

std::mutex lock;
uint32_t pool_size = 0;  // 0: no program of ours uses the pool yet

// Gives the pool its size.  Programs keep the pool's address, so it is replaced before the first of them is loaded, and
// never if it has the right size: something else in the process may use it too.
void size_pool(uint32_t count) {
  const std::lock_guard<std::mutex> hold(lock);
  if (pool_size == 0) {
    auto *pool = threadpool::get_threadpool();
    if (pool == nullptr || (pool->get_thread_count() != count && !pool->_unsafe_reset_threadpool(count))) {
      throw Failure("there is no pool of " + std::to_string(count) + " threads");
    }
    pool_size = count;
  }
  if (pool_size != count) {
    throw Failure("programs are loaded with " + std::to_string(pool_size) + " threads already, not " +
                  std::to_string(count));
  }
}

}  // namespace

Threads::Threads(uint32_t count) : before_(threadpool::NoThreadPoolGuard::is_enabled()) {
  if (count < 1 || count > kLimit) {
    throw Failure("the number of threads must be 1 to 256");
  }
  if (count > 1) {
    size_pool(count);
  }
  threadpool::NoThreadPoolGuard::set_enabled(count == 1);
}

Threads::~Threads() { threadpool::NoThreadPoolGuard::set_enabled(before_); }

}  // namespace edgepfl
