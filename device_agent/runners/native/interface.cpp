// The C interface: checks every argument and turns exceptions into results.
#include "edgepfl_executorch.h"

#include <new>

#include "program.hpp"
#include "threads.hpp"

#ifndef EDGEPFL_EXECUTORCH_VERSION
#error "define EDGEPFL_EXECUTORCH_VERSION as a string"
#endif

#if defined(__aarch64__)
#define EDGEPFL_MACHINE "aarch64"
#elif defined(__x86_64__)
#define EDGEPFL_MACHINE "x86_64"
#else
#define EDGEPFL_MACHINE "unknown"
#endif

struct edgepfl_program {
  edgepfl::Program inner;
  uint32_t threads;
  edgepfl_program(const void *data, size_t size, uint32_t threads) : inner(data, size), threads(threads) {}
};

namespace {

using edgepfl::Failure;

constexpr uintptr_t kProgramAlignment = 16;  // of ExecuTorch's file format

thread_local std::string last_error;

void remember(const std::string &what) {
  const std::string complaints = edgepfl::take_complaints();
  last_error = complaints.empty() ? what : what + ": " + complaints;
}

// Calls `body`; whether it got through.
template <typename Body>
bool guarded(Body body) noexcept {
  try {
    edgepfl::adopt_platform();
    edgepfl::take_complaints();
    last_error.clear();
    body();
    return true;
  } catch (const std::bad_alloc &) {
    last_error = "there is not enough memory";
  } catch (const std::exception &error) {
    remember(error.what());
  } catch (...) {
    remember("it failed for an unknown reason");
  }
  return false;
}

void require(bool holds, const char *what) {
  if (!holds) {
    throw Failure(what);
  }
}

void check(const std::vector<edgepfl::Port> &ports, const void *const *data, const uint64_t *bytes, size_t count,
           const char *side) {
  if (count != ports.size() || (count > 0 && (data == nullptr || bytes == nullptr))) {
    throw Failure(std::string("it has ") + std::to_string(ports.size()) + " " + side + "s, not " +
                  std::to_string(count));
  }
  for (size_t i = 0; i < count; ++i) {
    if (data[i] == nullptr || bytes[i] != ports[i].shown.bytes) {
      throw Failure(std::string(side) + " " + std::to_string(i) + " has " + std::to_string(ports[i].shown.bytes) +
                    " bytes, not " + std::to_string(data[i] == nullptr ? 0 : bytes[i]));
    }
  }
}

}  // namespace

extern "C" {

int32_t edgepfl_abi(void) { return EDGEPFL_ABI; }

const char *edgepfl_version(void) {
  return "executorch " EDGEPFL_EXECUTORCH_VERSION ", " EDGEPFL_MACHINE ", g++ " __VERSION__;
}

const char *edgepfl_error(void) { return last_error.c_str(); }

edgepfl_program *edgepfl_load(const void *data, size_t size, uint32_t threads) {
  edgepfl_program *program = nullptr;
  guarded([&] {
    require(data != nullptr && size > 0, "it is empty");
    require(reinterpret_cast<uintptr_t>(data) % kProgramAlignment == 0, "its bytes are not aligned to 16");
    const edgepfl::Threads with(threads);
    program = new edgepfl_program(data, size, threads);
  });
  return program;
}

int64_t edgepfl_ports(const edgepfl_program *program, int32_t side) {
  int64_t count = -1;
  guarded([&] {
    require(program != nullptr, "there is no program");
    require(side == EDGEPFL_INPUT || side == EDGEPFL_OUTPUT, "there is no such side");
    count = static_cast<int64_t>(program->inner.ports(side).size());
  });
  return count;
}

int32_t edgepfl_describe(const edgepfl_program *program, int32_t side, size_t index, edgepfl_port *port) {
  return guarded([&] {
           require(program != nullptr && port != nullptr, "there is no program, or nowhere to write");
           require(side == EDGEPFL_INPUT || side == EDGEPFL_OUTPUT, "there is no such side");
           const auto &ports = program->inner.ports(side);
           require(index < ports.size(), "there is no such port");
           *port = ports[index].shown;
         })
             ? 0
             : -1;
}

int32_t edgepfl_run(edgepfl_program *program, const void *const *inputs, const uint64_t *input_bytes,
                    size_t input_count, void *const *outputs, const uint64_t *output_bytes, size_t output_count) {
  return guarded([&] {
           require(program != nullptr, "there is no program");
           require(!program->inner.broken(), "ExecuTorch gave up on it before");
           check(program->inner.ports(EDGEPFL_INPUT), inputs, input_bytes, input_count, "input");
           check(program->inner.ports(EDGEPFL_OUTPUT), outputs, output_bytes, output_count, "output");
           const edgepfl::Threads with(program->threads);
           program->inner.run(inputs, outputs);
         })
             ? 0
             : -1;
}

void edgepfl_destroy(edgepfl_program *program) {
  if (program == nullptr || program->inner.broken()) {
    return;  // a broken one is leaked: its state is not fit for destructors
  }
  guarded([&] { delete program; });
}

}  // extern "C"
