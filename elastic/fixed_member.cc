#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "bellows/base/error.h"
#include "bellows/elastic/member.h"

namespace bellows {
namespace {

/// Nobody coordinates: the first membership is the last one, and a lost peer ends the job.
class FixedMember final : public Member {
 public:
  FixedMember(const World& world, std::shared_ptr<Bootstrap> bootstrap)
      : world_(world), id_(fmt::format("r{}", world.rank)), bootstrap_(std::move(bootstrap)) {
    world_.generation = 1;
  }

  const std::string& id() const override { return id_; }
  Bootstrap& bootstrap() override { return *bootstrap_; }

  /// Collective, as connecting is: the ranks tell each other who they are.
  void join(const JoinInfo& info) override {
    if (info.lanes > 0 && world_.world_size > info.lanes)
      throw UserError(
          fmt::format("more ranks than lanes: {} ranks, but there are only {} lanes; raise --lanes or start "
                      "fewer ranks",
                      world_.world_size, info.lanes));
    const std::string mine = fmt::format("{}\n{}\n{}", host_name(), ::getpid(), info.fingerprint);
    const auto all = bootstrap_->exchange(world_, "join", mine, Deadline::after(300));
    membership_.generation = 1;
    membership_.reason = world_.world_size == 1 ? "a world of one" : "a fixed world";
    membership_.decided_unix_ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
            .count();
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const std::size_t first = all[rank].find('\n');
      const std::size_t second = all[rank].find('\n', first + 1);
      if (all[rank].substr(second + 1) != info.fingerprint)
        throw UserError(fmt::format("rank {} trains something else than rank {}: its fingerprint is \"{}\", not \"{}\"",
                                    rank, world_.rank, all[rank].substr(second + 1), info.fingerprint));
      membership_.members.push_back({fmt::format("r{}", rank), all[rank].substr(0, first),
                                     std::stoll(all[rank].substr(first + 1, second - first - 1))});
    }
  }

  std::optional<Membership> await_membership(std::uint64_t after, Deadline) override {
    if (after == 0 && !left_) return membership_;
    return std::nullopt;  // there is no other world to wait for
  }

  std::uint64_t newest_generation() const override { return 1; }
  bool stop_requested() const override { return false; }
  void report(const StepReport&) override {}
  void report(const MfuWindow&) override {}
  void report(const ChangeReport&) override {}
  void report_failure(std::uint64_t, const std::vector<int>&, const std::string&) override {}
  void on_abort(std::function<void(std::uint64_t, const std::string&)>) override {}
  void leave(bool) override { left_ = true; }

 private:
  static std::string host_name() {
    char name[256] = {};
    ::gethostname(name, sizeof(name) - 1);
    return name;
  }

  World world_;
  const std::string id_;
  const std::shared_ptr<Bootstrap> bootstrap_;
  Membership membership_;
  std::atomic<bool> left_ = false;
};

}  // namespace

std::unique_ptr<Member> make_fixed_member(const World& world, std::shared_ptr<Bootstrap> bootstrap) {
  return std::make_unique<FixedMember>(world, std::move(bootstrap));
}

}  // namespace bellows
