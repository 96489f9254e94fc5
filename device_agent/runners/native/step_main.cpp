// Runs a program by itself, without Python: to try a file that may be damaged where a crash harms nobody, to check
// a board's arithmetic, and to time it.  Uses nothing but the C interface.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/resource.h>

#include "edgepfl_executorch.h"

namespace {

constexpr const char *kUsage =
    "usage: edgepfl_step PROGRAM [--inputs FILE] [--outputs FILE] [--repeat N] [--threads N]\n"
    "       edgepfl_step --version\n"
    "\n"
    "Runs method forward of an ExecuTorch program N times and prints one line of JSON.\n"
    "PROGRAM may be - for standard input.  The files hold the tensors one after the other as raw bytes;\n"
    "without --inputs all of them are zero.\n";
constexpr size_t kAlignment = 64;
constexpr size_t kBytesLimit = size_t{1} << 30;         // of one tensor
constexpr rlim_t kMemoryLimit = rlim_t{8} << 30;        // bytes of address space: a damaged file may ask for any number

struct Words {
  std::string program, inputs, outputs;
  int repeat = 1;
  int threads = 1;
};

struct Free {
  void operator()(void *data) const { std::free(data); }
};

// Bytes that begin at a multiple of 64 and may be read a little past their end.
class Bytes {
 public:
  explicit Bytes(size_t size) : size_(size) {
    if (size > kBytesLimit) {
      throw std::runtime_error("a tensor has " + std::to_string(size) + " bytes");
    }
    const size_t whole = (size / kAlignment + 2) * kAlignment;
    data_.reset(static_cast<char *>(std::aligned_alloc(kAlignment, whole)));
    if (!data_) {
      throw std::runtime_error("there is not enough memory");
    }
    std::memset(data_.get(), 0, whole);
  }
  char *data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  std::unique_ptr<char, Free> data_;
  size_t size_;
};

struct Destroy {
  void operator()(edgepfl_program *program) const { edgepfl_destroy(program); }
};
using Loaded = std::unique_ptr<edgepfl_program, Destroy>;

struct Side {
  std::vector<Bytes> tensors;
  std::vector<void *> pointers;
  std::vector<uint64_t> sizes;
};

[[noreturn]] void fail(const std::string &what) { throw std::runtime_error(what); }

int number(const std::string &word) {
  char *end = nullptr;
  const long value = std::strtol(word.c_str(), &end, 10);
  if (*end != '\0' || value < 1 || value > 1000000000) {
    fail(word + " is not a number of at least 1");
  }
  return static_cast<int>(value);
}

Words parse(int count, char **arguments) {
  Words words;
  for (int i = 1; i < count; ++i) {
    const std::string word = arguments[i];
    if (word.rfind("--", 0) != 0) {
      words.program = word;
      continue;
    }
    if (i + 1 >= count) {
      fail(word + " needs a value");
    }
    const std::string value = arguments[++i];
    if (word == "--inputs") {
      words.inputs = value;
    } else if (word == "--outputs") {
      words.outputs = value;
    } else if (word == "--repeat") {
      words.repeat = number(value);
    } else if (word == "--threads") {
      words.threads = number(value);
    } else {
      fail("there is no option " + word);
    }
  }
  return words;
}

Bytes read(const std::string &name) {
  std::ifstream file;
  if (name != "-") {
    file.open(name, std::ios::binary);
    if (!file) {
      fail(name + " cannot be read");
    }
  }
  std::istream &source = name == "-" ? std::cin : file;
  const std::string content((std::istreambuf_iterator<char>(source)), std::istreambuf_iterator<char>());
  Bytes bytes(content.size());
  std::memcpy(bytes.data(), content.data(), content.size());
  return bytes;
}

Side allocate(const edgepfl_program *program, int32_t side) {
  Side made;
  const int64_t count = edgepfl_ports(program, side);
  for (int64_t i = 0; i < count; ++i) {
    edgepfl_port port{};
    if (edgepfl_describe(program, side, static_cast<size_t>(i), &port) != 0) {
      fail(edgepfl_error());
    }
    made.tensors.emplace_back(port.bytes);
    made.sizes.push_back(port.bytes);
  }
  for (const Bytes &tensor : made.tensors) {
    made.pointers.push_back(tensor.data());
  }
  return made;
}

void fill(const Side &side, const std::string &name) {
  const Bytes content = read(name);
  size_t at = 0;
  for (const Bytes &tensor : side.tensors) {
    if (content.size() - at < tensor.size()) {
      fail(name + " is too short");
    }
    std::memcpy(tensor.data(), content.data() + at, tensor.size());
    at += tensor.size();
  }
  if (at != content.size()) {
    fail(name + " is too long");
  }
}

void write(const Side &side, const std::string &name) {
  std::ofstream file(name, std::ios::binary);
  for (const Bytes &tensor : side.tensors) {
    file.write(tensor.data(), static_cast<std::streamsize>(tensor.size()));
  }
  if (!file.flush()) {
    fail(name + " cannot be written");
  }
}

double best_of(edgepfl_program *program, const Side &in, const Side &out, int repeat) {
  double best = 1e30;
  for (int i = 0; i < repeat; ++i) {
    const auto begun = std::chrono::steady_clock::now();
    if (edgepfl_run(program, in.pointers.data(), in.sizes.data(), in.sizes.size(), out.pointers.data(),
                    out.sizes.data(), out.sizes.size()) != 0) {
      fail(edgepfl_error());
    }
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begun;
    best = std::min(best, took.count());
  }
  return best;
}

// Resident memory with shared pages divided among those who share them.
long pss_kib() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("Pss:", 0) == 0) {
      return std::strtol(line.c_str() + 4, nullptr, 10);
    }
  }
  return -1;
}

void run(const Words &words) {
  const Bytes file = read(words.program);
  const Loaded program(edgepfl_load(file.data(), file.size(), static_cast<uint32_t>(words.threads)));
  if (!program) {
    fail(edgepfl_error());
  }
  const Side in = allocate(program.get(), EDGEPFL_INPUT);
  const Side out = allocate(program.get(), EDGEPFL_OUTPUT);
  if (!words.inputs.empty()) {
    fill(in, words.inputs);
  }
  const double best = best_of(program.get(), in, out, words.repeat);
  if (!words.outputs.empty()) {
    write(out, words.outputs);
  }
  std::printf("{\"version\": \"%s\", \"abi\": %d, \"inputs\": %zu, \"outputs\": %zu, \"us\": %.1f, \"pss_kib\": %ld}\n",
              edgepfl_version(), edgepfl_abi(), in.sizes.size(), out.sizes.size(), best, pss_kib());
}

}  // namespace

int main(int count, char **arguments) {
  try {
    if (count == 2 && std::string(arguments[1]) == "--version") {
      std::printf("%s\n", edgepfl_version());
      return 0;
    }
    const Words words = parse(count, arguments);
    if (words.program.empty()) {
      fail(std::string("no program is given\n\n") + kUsage);
    }
    const rlimit memory{kMemoryLimit, kMemoryLimit};
    setrlimit(RLIMIT_AS, &memory);
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    run(words);
    return 0;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "edgepfl_step: %s\n", error.what());
    return 1;
  }
}
