// A loaded program: what edgepfl_executorch.h hands out.
#ifndef EDGEPFL_PROGRAM_HPP
#define EDGEPFL_PROGRAM_HPP

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>

#include "edgepfl_executorch.h"

namespace edgepfl {

namespace et = executorch::runtime;

// A call that failed; never leaves the library.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// ExecuTorch asked to abort: whatever ran is in no defined state any more.
struct Aborted : Failure {
  using Failure::Failure;
};

// XNNPACK reads up to 16 bytes past the end of its operands (and does not use them).
constexpr size_t kReadPast = 64;
constexpr size_t kAlignment = 64;

// Memory of our own that may be read past its end.
class Block {
 public:
  explicit Block(size_t bytes);
  uint8_t *data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(uint8_t *data) const { std::free(data); }
  };
  std::unique_ptr<uint8_t, Free> data_;
  size_t size_;
};

// One input or output.
struct Port {
  edgepfl_port shown;
  std::vector<executorch::aten::SizesType> sizes;
  std::vector<executorch::aten::DimOrderType> order;
  std::vector<executorch::aten::StridesType> strides;
  std::unique_ptr<executorch::aten::TensorImpl> tensor;  // of inputs: what is handed to the method
  std::optional<Block> staged;                           // of inputs: a copy, where the caller's memory will not do
};

class Program {
 public:
  // Throws Failure.
  Program(const void *data, size_t size);
  Program(const Program &) = delete;
  Program &operator=(const Program &) = delete;

  const std::vector<Port> &ports(int32_t side) const { return side == EDGEPFL_INPUT ? inputs_ : outputs_; }
  bool broken() const { return broken_; }

  // Throws Failure, and after Aborted the program is broken.  The counts and sizes are the ports'.
  void run(const void *const *inputs, void *const *outputs);

 private:
  void plan_memory(const et::MethodMeta &meta);
  void read_border(const et::MethodMeta &meta);
  void find_direct_outputs();
  void set_input(size_t index, const void *data);
  void deliver(size_t index, void *data);

  executorch::extension::BufferDataLoader loader_;
  executorch::extension::MallocMemoryAllocator method_memory_;
  std::vector<Block> blocks_;
  std::vector<et::Span<uint8_t>> spans_;
  std::optional<et::HierarchicalAllocator> planned_memory_;
  std::optional<et::MemoryManager> memory_;
  std::optional<et::Program> program_;
  std::optional<et::Method> method_;
  std::vector<Port> inputs_;
  std::vector<Port> outputs_;
  bool broken_ = false;
};

// ExecuTorch's complaints since the last call, of this thread.
std::string take_complaints();

// Throws Failure with what could not be done, and ExecuTorch's reason.
void expect(et::Error error, const std::string &what);

// Routes ExecuTorch's log and its aborts to us; once a process.
void adopt_platform();

}  // namespace edgepfl

#endif
