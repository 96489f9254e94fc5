// ExecuTorch's log and its aborts, which would otherwise go to standard error and end the agent.
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

#include <mutex>

#include "program.hpp"

namespace edgepfl {
namespace {

constexpr size_t kLimit = 400;  // characters: the first complaint says most

thread_local std::string complaints;

void listen(et_timestamp_t, et_pal_log_level_t level, const char *, const char *, size_t, const char *message,
            size_t length) {
  if ((level != kError && level != kFatal) || complaints.size() > kLimit) {
    return;
  }
  if (!complaints.empty()) {
    complaints += "; ";
  }
  complaints.append(message, std::min(length, kLimit));
}

// ExecuTorch calls this where going on would be wrong.  An exception leaves its frames without running their
// destructors where they were compiled without exceptions, so the program must not be touched again.
[[noreturn]] void refuse_abort() { throw Aborted("ExecuTorch gave up"); }

}  // namespace

std::string take_complaints() {
  std::string taken;
  taken.swap(complaints);
  return taken;
}

void expect(et::Error error, const std::string &what) {
  if (error != et::Error::Ok) {
    throw Failure(what + " (" + et::to_string(error) + ")");
  }
}

void adopt_platform() {
  static std::once_flag once;
  std::call_once(once, [] {
    et::runtime_init();
    et::register_pal(
        et::PalImpl::create(nullptr, refuse_abort, nullptr, nullptr, listen, nullptr, nullptr, __FILE__));
  });
}

}  // namespace edgepfl
