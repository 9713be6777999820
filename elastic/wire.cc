#include "wire.h"

namespace bellows {
namespace {

void to_wire(const MemberInfo& value, v1::MemberInfo* out) {
  out->set_id(value.id);
  out->set_host(value.host);
  out->set_pid(value.pid);
}
MemberInfo from_wire(const v1::MemberInfo& message) { return {message.id(), message.host(), message.pid()}; }

}  // namespace

void to_wire(const Membership& value, v1::Membership* out) {
  out->set_generation(value.generation);
  for (const MemberInfo& member : value.members) to_wire(member, out->add_members());
  for (const MemberInfo& member : value.leaving) to_wire(member, out->add_leaving());
  out->set_planned(value.planned);
  out->set_reason(value.reason);
  out->set_decided_unix_ms(value.decided_unix_ms);
}
Membership from_wire(const v1::Membership& message) {
  Membership value;
  value.generation = message.generation();
  for (const auto& member : message.members()) value.members.push_back(from_wire(member));
  for (const auto& member : message.leaving()) value.leaving.push_back(from_wire(member));
  value.planned = message.planned();
  value.reason = message.reason();
  value.decided_unix_ms = message.decided_unix_ms();
  return value;
}

void to_wire(const Signals& value, v1::Signals* out) {
  out->set_newest_generation(value.newest_generation);
  out->set_dead_generation(value.dead_generation);
  out->set_dead_why(value.dead_why);
  out->set_stop(value.stop);
  out->set_fenced(value.fenced);
  out->set_over(value.over);
  out->set_unknown(value.unknown);
}
Signals from_wire(const v1::Signals& message) {
  Signals value;
  value.newest_generation = message.newest_generation();
  value.dead_generation = message.dead_generation();
  value.dead_why = message.dead_why();
  value.stop = message.stop();
  value.fenced = message.fenced();
  value.over = message.over();
  value.unknown = message.unknown();
  return value;
}

void to_wire(const StepReport& value, v1::StepReport* out) {
  out->set_generation(value.generation);
  out->set_rank(value.rank);
  out->set_step(value.step);
  out->set_total_steps(value.total_steps);
  out->set_loss(value.loss);
  out->set_tokens_per_second(value.tokens_per_second);
  if (value.mfu) out->set_mfu(*value.mfu);
}
StepReport from_wire(const v1::StepReport& message) {
  StepReport value;
  value.generation = message.generation();
  value.rank = message.rank();
  value.step = message.step();
  value.total_steps = message.total_steps();
  value.loss = message.loss();
  value.tokens_per_second = message.tokens_per_second();
  if (message.has_mfu()) value.mfu = message.mfu();
  return value;
}

void to_wire(const MfuWindow& value, v1::MfuWindow* out) {
  out->set_generation(value.generation);
  out->set_world_size(value.world_size);
  out->set_seconds(value.seconds);
  out->set_first_step(value.first_step);
  out->set_last_step(value.last_step);
  if (value.mfu) out->set_mfu(*value.mfu);
  out->set_valid(value.valid);
  out->set_why_invalid(value.why_invalid);
  out->set_tokens_per_second(value.tokens_per_second);
  out->set_data_wait_over_compute(value.data_wait_over_compute);
  out->set_straggler_share(value.straggler_share);
  out->set_slowest_rank(value.slowest_rank);
  out->set_slowest_phase(value.slowest_phase);
}
MfuWindow from_wire(const v1::MfuWindow& message) {
  MfuWindow value;
  value.generation = message.generation();
  value.world_size = message.world_size();
  value.seconds = message.seconds();
  value.first_step = message.first_step();
  value.last_step = message.last_step();
  if (message.has_mfu()) value.mfu = message.mfu();
  value.valid = message.valid();
  value.why_invalid = message.why_invalid();
  value.tokens_per_second = message.tokens_per_second();
  value.data_wait_over_compute = message.data_wait_over_compute();
  value.straggler_share = message.straggler_share();
  value.slowest_rank = message.slowest_rank();
  value.slowest_phase = message.slowest_phase();
  return value;
}

void to_wire(const ChangeReport& value, v1::ChangeReport* out) {
  out->set_generation(value.generation);
  out->set_from(value.from);
  out->set_to(value.to);
  out->set_reason(value.reason);
  out->set_bytes_moved(value.bytes_moved);
  out->set_ms(value.ms);
}
ChangeReport from_wire(const v1::ChangeReport& message) {
  ChangeReport value;
  value.generation = message.generation();
  value.from = message.from();
  value.to = message.to();
  value.reason = message.reason();
  value.bytes_moved = message.bytes_moved();
  value.ms = message.ms();
  return value;
}

void to_wire(const JobStatus& value, v1::StatusReply* out) {
  out->set_job(value.job);
  out->set_phase(value.phase);
  out->set_generation(value.generation);
  out->set_world_size(value.world_size);
  out->set_wanted(value.wanted);
  out->set_min_ranks(value.min_ranks);
  out->set_max_ranks(value.max_ranks);
  out->set_policy(value.policy);
  out->set_threshold(value.threshold);
  out->set_failures(value.failures);
  out->set_failure_budget(value.failure_budget);
  out->set_settled(value.settled);
  out->set_note(value.note);
  out->set_stopping(value.stopping);
  to_wire(value.step, out->mutable_step());
  if (value.window) to_wire(*value.window, out->mutable_window());
  out->set_last_decision(value.last_decision);
  for (const MemberStatus& member : value.members) {
    v1::MemberStatus* m = out->add_members();
    to_wire(member.info, m->mutable_info());
    m->set_state(member.state);
    m->set_rank(member.rank);
    m->set_seen_seconds_ago(member.seen_seconds_ago);
    m->set_agent(member.agent);
    to_wire(member.step, m->mutable_step());
  }
  for (const AgentStatus& agent : value.agents) {
    v1::AgentStatus* a = out->add_agents();
    a->set_id(agent.id);
    a->set_host(agent.host);
    a->set_slots(agent.slots);
    a->set_used(agent.used);
    a->set_alive(agent.alive);
    a->set_draining(agent.draining);
  }
  if (value.outcome) {
    out->set_outcome(value.outcome->text);
    out->set_exit_code(value.outcome->exit_code);
  }
  out->set_last_event(value.last_event);
}
JobStatus from_wire(const v1::StatusReply& message) {
  JobStatus value;
  value.job = message.job();
  value.phase = message.phase();
  value.generation = message.generation();
  value.world_size = message.world_size();
  value.wanted = message.wanted();
  value.min_ranks = message.min_ranks();
  value.max_ranks = message.max_ranks();
  value.policy = message.policy();
  value.threshold = message.threshold();
  value.failures = message.failures();
  value.failure_budget = message.failure_budget();
  value.settled = message.settled();
  value.note = message.note();
  value.stopping = message.stopping();
  value.step = from_wire(message.step());
  if (message.has_window()) value.window = from_wire(message.window());
  value.last_decision = message.last_decision();
  for (const auto& m : message.members()) {
    MemberStatus member;
    member.info = from_wire(m.info());
    member.state = m.state();
    member.rank = m.rank();
    member.seen_seconds_ago = m.seen_seconds_ago();
    member.agent = m.agent();
    member.step = from_wire(m.step());
    value.members.push_back(std::move(member));
  }
  for (const auto& a : message.agents())
    value.agents.push_back({a.id(), a.host(), a.slots(), a.used(), a.alive(), a.draining()});
  if (value.phase == "over") value.outcome = Outcome{message.exit_code(), message.outcome(), ""};
  value.last_event = message.last_event();
  return value;
}

void to_wire(const Event& value, v1::Event* out) {
  out->set_seq(value.seq);
  out->set_unix_ms(value.unix_ms);
  out->set_kind(value.kind);
  out->set_text(value.text);
  out->set_generation(value.generation);
  out->set_from(value.from);
  out->set_to(value.to);
  out->set_bytes_moved(value.bytes_moved);
  out->set_ms(value.ms);
}
Event from_wire(const v1::Event& message) {
  Event value;
  value.seq = message.seq();
  value.unix_ms = message.unix_ms();
  value.kind = message.kind();
  value.text = message.text();
  value.generation = message.generation();
  value.from = message.from();
  value.to = message.to();
  value.bytes_moved = message.bytes_moved();
  value.ms = message.ms();
  return value;
}

}  // namespace bellows
