#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "bellows/base/check.h"
#include "bellows/base/digest.h"
#include "bellows/base/error.h"
#include "bellows/runtime/data.h"

namespace bellows {
namespace {

/// A file mapped for reading.
class Mapping {
 public:
  explicit Mapping(const std::string& path) : path_(path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not block
    if (fd < 0) throw UserError("cannot read data file '" + path + "': " + std::strerror(errno));
    struct stat info {};
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
      close(fd);
      throw UserError("data file '" + path + "' is not a regular file");
    }
    size_ = static_cast<std::size_t>(info.st_size);
    if (size_ > 0) {
      void* data = mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
      const int error = errno;
      close(fd);
      if (data == MAP_FAILED) throw UserError("cannot map data file '" + path + "': " + std::strerror(error));
      data_ = static_cast<const unsigned char*>(data);
    } else {
      close(fd);
      throw UserError("data file '" + path + "' is empty");
    }
  }
  Mapping(Mapping&& other) noexcept
      : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  ~Mapping() {
    if (data_) munmap(const_cast<unsigned char*>(data_), size_);
  }
  const std::string& path() const { return path_; }
  const unsigned char* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::string path_;
  const unsigned char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace

struct TextData::Impl {
  /// Sequences of one file: training ones first, held-out ones after them. Sequence k starts at byte k*seq.
  struct Part {
    Mapping file;
    std::int64_t train = 0, held_out = 0;
  };
  std::vector<Part> parts;
  int seq = 0;
  std::int64_t train = 0, held_out = 0;
  std::unique_ptr<ShuffledOrder> order;

  void copy(const Part& part, std::int64_t k, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
    BELLOWS_CHECK_EQ(tokens.size(), static_cast<std::size_t>(seq));
    BELLOWS_CHECK_EQ(targets.size(), static_cast<std::size_t>(seq));
    const unsigned char* text = part.file.data() + k * seq;
    std::copy_n(text, seq, tokens.begin());
    std::copy_n(text + 1, seq, targets.begin());
  }
};

TextData::TextData(const std::vector<std::string>& files, int seq, std::uint64_t seed, double held_out)
    : impl_(std::make_unique<Impl>()) {
  if (files.empty()) throw UserError("no data files given");
  if (seq < 1) throw UserError("sequences must have at least one token, not " + std::to_string(seq));
  if (!(held_out >= 0 && held_out < 1))
    throw UserError("the held-out share must be at least 0 and below 1, not " + std::to_string(held_out));
  impl_->seq = seq;
  const std::size_t needed = static_cast<std::size_t>(seq) + 1;  // the last target is the byte after the last input
  for (const std::string& path : files) {
    Mapping file(path);
    if (file.size() < needed)
      throw UserError("data file '" + path + "' has " + std::to_string(file.size()) + " bytes; one sequence of " +
                      std::to_string(seq) + " needs " + std::to_string(needed) + ": give more text or a smaller --seq");
    const std::int64_t sequences = (static_cast<std::int64_t>(file.size()) - 1) / seq;
    // Whole sequences from the end; at least one is left to train on.
    const auto wanted = static_cast<std::int64_t>(static_cast<double>(sequences) * held_out + 0.5);
    const std::int64_t kept = std::min(wanted, sequences - 1);
    impl_->train += sequences - kept;
    impl_->held_out += kept;
    impl_->parts.push_back({std::move(file), sequences - kept, kept});
  }
  impl_->order = std::make_unique<ShuffledOrder>(seed, impl_->train);
}
TextData::~TextData() = default;
TextData::TextData(TextData&&) noexcept = default;

std::int64_t TextData::train_samples() const { return impl_->train; }
std::int64_t TextData::held_out_samples() const { return impl_->held_out; }

void TextData::train(std::int64_t n, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
  std::int64_t k = impl_->order->at(n);
  for (const Impl::Part& part : impl_->parts) {
    if (k < part.train) return impl_->copy(part, k, tokens, targets);
    k -= part.train;
  }
  BELLOWS_CHECK(false);
}

void TextData::held_out(std::int64_t n, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
  if (impl_->held_out == 0) throw UserError("the data is too short to hold anything out for evaluation");
  std::int64_t k = n % impl_->held_out;
  for (const Impl::Part& part : impl_->parts) {
    if (k < part.held_out) return impl_->copy(part, part.train + k, tokens, targets);
    k -= part.held_out;
  }
  BELLOWS_CHECK(false);
}

// Length and 4 KiB at 64 places of every file: enough to notice another file, cheap for terabytes.
std::string TextData::fingerprint() const {
  Digest digest;
  constexpr std::size_t kProbe = 4096, kPlaces = 64;
  for (const Impl::Part& part : impl_->parts) {
    digest.update(std::to_string(part.file.size()) + ";");
    const std::size_t span = part.file.size() > kProbe ? part.file.size() - kProbe : 0;
    for (std::size_t i = 0; i < kPlaces; ++i) {
      const std::size_t at = span * i / (kPlaces - 1);
      digest.update(std::as_bytes(std::span(part.file.data() + at, std::min(kProbe, part.file.size() - at))));
      if (span == 0) break;
    }
  }
  return "text " + digest.hex() + " sequences " + std::to_string(impl_->train) + "+" + std::to_string(impl_->held_out);
}

}  // namespace bellows
