#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <future>
#include <map>
#include <mutex>
#include <set>

#include "bellows/base/error.h"
#include "bellows/elastic/member.h"

namespace bellows {
namespace {

using testing::HasSubstr;

/// Sets variables for one test and puts the old ones back.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& variables) {
    for (const char* name :
         {"BELLOWS_COORDINATOR", "BELLOWS_TOKEN", "BELLOWS_MEMBER", "BELLOWS_HOST", "BELLOWS_HEARTBEAT",
          "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK"}) {
      const char* value = std::getenv(name);
      if (value) before_[name] = value;
      cleared_.insert(name);
      ::unsetenv(name);
    }
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const std::string& name : cleared_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::map<std::string, std::string> before_;
  std::set<std::string> cleared_;
};

std::string error_of_environment(const std::map<std::string, std::string>& variables) {
  const Environment environment(variables);
  try {
    make_member_from_environment();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(MemberFromEnvironment, PlainStartIsAWorldOfOne) {
  const Environment environment({});
  const auto member = make_member_from_environment();
  member->join({"f", 4});
  const auto membership = member->await_membership(0, Deadline::after(1));
  ASSERT_TRUE(membership);
  EXPECT_EQ(membership->world_of(member->id()), (World{0, 1, 0, 1, 1}));
  EXPECT_EQ(membership->members[0].pid, ::getpid());
  EXPECT_FALSE(member->await_membership(1, Deadline::after(1))) << "there is no other world";
  EXPECT_EQ(member->newest_generation(), 1u);
  EXPECT_FALSE(member->stop_requested());
  member->leave(true);
}

TEST(MemberFromEnvironment, HalfSetVariablesNameTheMissingOne) {
  EXPECT_THAT(error_of_environment({{"BELLOWS_COORDINATOR", "127.0.0.1:1"}}), HasSubstr("BELLOWS_TOKEN is not set"));
  EXPECT_THAT(error_of_environment({{"BELLOWS_TOKEN", "x"}}), HasSubstr("BELLOWS_COORDINATOR is not set"));
  EXPECT_THAT(error_of_environment({{"BELLOWS_MEMBER", "m1"}}), HasSubstr("BELLOWS_COORDINATOR is not set"));
  EXPECT_THAT(error_of_environment({{"OMPI_COMM_WORLD_SIZE", "4"}}), HasSubstr("OMPI_COMM_WORLD_RANK is not set"));
  EXPECT_THAT(error_of_environment({{"PMI_RANK", "0"}}), HasSubstr("PMI_SIZE is not set"));
}

TEST(MemberFromEnvironment, BadHeartbeatNamesTheValue) {
  EXPECT_THAT(error_of_environment(
                  {{"BELLOWS_COORDINATOR", "127.0.0.1:1"}, {"BELLOWS_TOKEN", "x"}, {"BELLOWS_HEARTBEAT", "fast"}}),
              HasSubstr("BELLOWS_HEARTBEAT=fast"));
}

/// Ranks as threads that meet at a table.
class Table final : public Bootstrap {
 public:
  std::vector<std::string> exchange(const World& world, const std::string& tag, const std::string& blob,
                                    Deadline) override {
    std::unique_lock lock(mutex_);
    auto& blobs = tables_[tag];
    blobs[world.rank] = blob;
    changed_.notify_all();
    changed_.wait(lock, [&] { return static_cast<int>(blobs.size()) == world.world_size; });
    std::vector<std::string> all;
    for (const auto& [rank, one] : blobs) all.push_back(one);
    return all;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::map<int, std::string>> tables_;
};

TEST(FixedMember, RanksLearnWhoTheOthersAre) {
  const auto table = std::make_shared<Table>();
  std::vector<std::future<Membership>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const auto member = make_fixed_member({rank, 3, rank, 3, 0}, table);
      member->join({"f", 8});
      return *member->await_membership(0, Deadline::after(10));
    }));
  }
  for (auto& rank : ranks) {
    const Membership membership = rank.get();
    EXPECT_EQ(membership.generation, 1u);
    EXPECT_EQ(membership.world_size(), 3);
    EXPECT_EQ(membership.world_of("r2")->local_size, 3);
  }
}

TEST(FixedMember, RefusesMoreRanksThanLanesAndStrangers) {
  EXPECT_THROW(make_fixed_member({0, 3, 0, 3, 0}, std::make_shared<Table>())->join({"f", 2}), UserError);
  const auto table = std::make_shared<Table>();
  std::vector<std::future<std::string>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank]() -> std::string {
      try {
        make_fixed_member({rank, 2, rank, 2, 0}, table)->join({"model " + std::to_string(rank), 8});
      } catch (const UserError& error) {
        return error.what();
      }
      return "";
    }));
  }
  for (auto& rank : ranks) EXPECT_THAT(rank.get(), HasSubstr("trains something else"));
}

}  // namespace
}  // namespace bellows
