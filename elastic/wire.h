#pragma once
#include "bellows.pb.h"
#include "bellows/elastic/job.h"
#include "coordinator_core.h"

// Values to messages and back. Messages come from outside: what cannot be a value of ours is cut to what can.

namespace bellows {

void to_wire(const Membership& value, v1::Membership* out);
Membership from_wire(const v1::Membership& message);
void to_wire(const Signals& value, v1::Signals* out);
Signals from_wire(const v1::Signals& message);
void to_wire(const StepReport& value, v1::StepReport* out);
StepReport from_wire(const v1::StepReport& message);
void to_wire(const MfuWindow& value, v1::MfuWindow* out);
MfuWindow from_wire(const v1::MfuWindow& message);
void to_wire(const ChangeReport& value, v1::ChangeReport* out);
ChangeReport from_wire(const v1::ChangeReport& message);
void to_wire(const JobStatus& value, v1::StatusReply* out);
JobStatus from_wire(const v1::StatusReply& message);
void to_wire(const Event& value, v1::Event* out);
Event from_wire(const v1::Event& message);

}  // namespace bellows
