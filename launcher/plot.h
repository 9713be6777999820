#pragma once
#include <string>

#include "metrics_file.h"

namespace bellows {

/// Loss, MFU and world size over steps and the time accounts, as an SVG document.
std::string draw_run(const MetricsFile& run, const std::string& title);
/// The closing table as text.
std::string report_text(const MetricsFile& run);
/// The same as one JSON object; a loss that is not finite and an unknown MFU are null.
std::string report_json(const MetricsFile& run);

/// `bellows plot METRICS.jsonl [-o DIR_OR_FILE] [--title TITLE]`: writes an SVG and, where rsvg-convert is installed, a
/// PNG.
int plot_main(int argc, char** argv);
/// `bellows report METRICS.jsonl [--json]`: prints the closing table.
int report_main(int argc, char** argv);

}  // namespace bellows
