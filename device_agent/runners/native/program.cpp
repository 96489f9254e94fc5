#include "program.hpp"

#include <cstring>

namespace edgepfl {
namespace {

constexpr const char *kMethod = "forward";
constexpr uintptr_t kPage = 4096;               // the smallest there is: larger pages only make us copy more often
constexpr int64_t kPlannedLimit = 1LL << 32;    // bytes
constexpr size_t kBufferLimit = 64;             // planned buffers
constexpr size_t kPortLimit = 1 << 16;          // inputs or outputs

template <typename T>
T value(et::Result<T> result, const std::string &what) {
  expect(result.error(), what);
  return std::move(result.get());
}

// Whether a kernel may read `data` where it lies: aligned to its elements, and what is read past its end is mapped.
bool readable_in_place(const void *data, const edgepfl_port &port) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t last = begin + port.bytes - 1;
  const uintptr_t alignment = port.type == EDGEPFL_INT64 ? 8 : 4;
  return port.bytes > 0 && begin % alignment == 0 && last / kPage == (last + kReadPast) / kPage;
}

Port described(const et::TensorInfo &info, const std::string &what) {
  Port port{};
  const auto sizes = info.sizes();
  const auto order = info.dim_order();
  if (sizes.size() > EDGEPFL_RANK_LIMIT || order.size() != sizes.size()) {
    throw Failure(what + " has " + std::to_string(sizes.size()) + " dimensions");
  }
  port.shown.type = static_cast<int32_t>(info.scalar_type());
  port.shown.rank = static_cast<int32_t>(sizes.size());
  port.shown.bytes = info.nbytes();
  port.shown.direct = info.is_memory_planned() ? 0 : 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (order[i] != i) {
      throw Failure(what + " is not in row-major order");
    }
    port.shown.shape[i] = sizes[i];
    port.sizes.push_back(sizes[i]);
    port.order.push_back(order[i]);
    port.strides.push_back(1);
  }
  for (size_t i = sizes.size(); i-- > 1;) {
    port.strides[i - 1] = port.strides[i] * port.sizes[i];
  }
  return port;
}

}  // namespace

Block::Block(size_t bytes) : size_(bytes) {
  const size_t whole = (bytes + kReadPast + kAlignment - 1) / kAlignment * kAlignment;
  data_.reset(static_cast<uint8_t *>(std::aligned_alloc(kAlignment, whole)));
  if (!data_) {
    throw Failure("there is no memory for " + std::to_string(bytes) + " bytes");
  }
}

Program::Program(const void *data, size_t size) : loader_(data, size) {
  program_.emplace(
      value(et::Program::load(&loader_, et::Program::Verification::InternalConsistency), "it is no program"));
  const auto meta = value(program_->method_meta(kMethod), "it has no method forward");
  read_border(meta);
  plan_memory(meta);
  method_.emplace(value(program_->load_method(kMethod, &*memory_), "its method cannot be loaded"));
  find_direct_outputs();
}

void Program::read_border(const et::MethodMeta &meta) {
  if (meta.num_inputs() > kPortLimit || meta.num_outputs() > kPortLimit) {
    throw Failure("it has too many inputs or outputs");
  }
  for (size_t i = 0; i < meta.num_inputs(); ++i) {
    const std::string what = "input " + std::to_string(i);
    inputs_.push_back(described(value(meta.input_tensor_meta(i), what + " is no tensor"), what));
    Port &port = inputs_.back();
    port.tensor = std::make_unique<executorch::aten::TensorImpl>(
        static_cast<executorch::aten::ScalarType>(port.shown.type), port.shown.rank, port.sizes.data(), nullptr,
        port.order.data(), port.strides.data());
  }
  for (size_t i = 0; i < meta.num_outputs(); ++i) {
    const std::string what = "output " + std::to_string(i);
    outputs_.push_back(described(value(meta.output_tensor_meta(i), what + " is no tensor"), what));
  }
}

void Program::plan_memory(const et::MethodMeta &meta) {
  const size_t count = meta.num_memory_planned_buffers();
  if (count > kBufferLimit) {
    throw Failure("it plans " + std::to_string(count) + " buffers");
  }
  for (size_t i = 0; i < count; ++i) {
    const int64_t bytes = value(meta.memory_planned_buffer_size(i), "its memory plan is damaged");
    if (bytes < 0 || bytes > kPlannedLimit) {
      throw Failure("it plans a buffer of " + std::to_string(bytes) + " bytes");
    }
    blocks_.emplace_back(static_cast<size_t>(bytes));
    spans_.emplace_back(blocks_.back().data(), blocks_.back().size());
  }
  planned_memory_.emplace(et::Span<et::Span<uint8_t>>(spans_.data(), spans_.size()));
  memory_.emplace(&method_memory_, &*planned_memory_);
}

// An output can be written in place unless the file plans its memory, or it is an input or another output under a
// second name: then setting its memory would move theirs.
void Program::find_direct_outputs() {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const et::EValue *output = &method_->get_output(i);
    if (!output->isTensor()) {
      throw Failure("output " + std::to_string(i) + " is no tensor");
    }
    bool shared = false;
    for (size_t j = 0; j < i; ++j) {
      shared = shared || output == &method_->get_output(j);
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // nothing else tells whether an output is an input
    for (size_t j = 0; j < inputs_.size(); ++j) {
      shared = shared || output == &method_->get_input(j);
    }
#pragma GCC diagnostic pop
    if (shared) {
      outputs_[i].shown.direct = 0;
    }
  }
}

void Program::run(const void *const *inputs, void *const *outputs) {
  try {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      set_input(i, inputs[i]);
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (outputs_[i].shown.direct != 0) {
        expect(method_->set_output_data_ptr(outputs[i], outputs_[i].shown.bytes, i),
               "output " + std::to_string(i) + " cannot be bound");
      }
    }
    expect(method_->execute(), "it failed");
    for (size_t i = 0; i < outputs_.size(); ++i) {
      deliver(i, outputs[i]);
    }
  } catch (const Aborted &) {
    broken_ = true;
    throw;
  }
}

void Program::set_input(size_t index, const void *data) {
  Port &port = inputs_[index];
  void *source = const_cast<void *>(data);  // the method only reads its inputs
  if (port.shown.direct != 0 && !readable_in_place(data, port.shown)) {
    if (!port.staged) {
      port.staged.emplace(port.shown.bytes);
    }
    std::memcpy(port.staged->data(), data, port.shown.bytes);
    source = port.staged->data();
  }
  port.tensor->set_data(source);
  expect(method_->set_input(executorch::aten::Tensor(port.tensor.get()), index),
         "input " + std::to_string(index) + " cannot be set");
}

void Program::deliver(size_t index, void *data) {
  const Port &port = outputs_[index];
  const auto &tensor = method_->get_output(index).toTensor();
  if (tensor.nbytes() != port.shown.bytes || tensor.const_data_ptr() == nullptr) {
    throw Failure("output " + std::to_string(index) + " came out with another size");
  }
  if (tensor.const_data_ptr() != data) {
    std::memcpy(data, tensor.const_data_ptr(), port.shown.bytes);
  }
}

}  // namespace edgepfl
