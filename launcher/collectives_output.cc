#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>

#include "bellows/base/error.h"
#include "bellows/base/memory.h"
#include "collectives_bench.h"

namespace bellows {
namespace {

double algbw_gbps(const CollectivesRow& row, double us) { return static_cast<double>(row.bytes) / us * 1e-3; }

nlohmann::ordered_json to_json(const CollectivesRow& row, const CollectivesResult& result) {
  const double algbw = algbw_gbps(row, row.median_us);
  nlohmann::ordered_json object = {{"op", row.op},
                                   {"transport", result.transport},
                                   {"algorithm", row.algorithm},
                                   {"dtype", row.dtype},
                                   {"bytes", row.bytes},
                                   {"ranks", result.ranks},
                                   {"median_us", row.median_us},
                                   {"min_us", row.min_us},
                                   {"max_us", row.max_us},
                                   {"algbw_gbps", algbw},
                                   {"busbw_gbps", algbw * busbw_factor(row.op, result.ranks)},
                                   {"limit_ratio", row.limit_us / row.median_us},
                                   {"wrong", row.wrong}};
  if (row.mpi_us) {
    object["mpi_median_us"] = *row.mpi_us;
    object["ratio"] = *row.mpi_us / row.median_us;
  }
  return object;
}

void print_csv(const nlohmann::ordered_json& rows) {
  std::string header;
  for (const auto& [key, value] : rows[0].items()) header += (header.empty() ? "" : ",") + key;
  std::printf("%s\n", header.c_str());
  for (const auto& object : rows) {
    std::string line;
    for (const auto& [key, value] : object.items())
      line += (line.empty() ? "" : ",") + (value.is_string() ? value.get<std::string>() : value.dump());
    std::printf("%s\n", line.c_str());
  }
}

void print_table(const CollectivesResult& result) {
  const bool versus = !result.rows.empty() && result.rows[0].mpi_us;
  std::printf("%-15s %-7s %5s %5s %12s %11s %11s %11s %8s %8s %6s %6s", "op", "over", "ranks", "dtype", "bytes",
              "median us", "min us", "max us", "alg GB/s", "bus GB/s", "limit", "check");
  std::printf(versus ? " %11s %7s  %s\n" : "\n", "MPI us", "ratio", "MPI's best");
  for (const CollectivesRow& row : result.rows) {
    const double algbw = algbw_gbps(row, row.median_us);
    std::printf("%-15s %-7s %5d %5s %12zu %11.1f %11.1f %11.1f %8.2f %8.2f %6.2f %6s", row.op.c_str(),
                result.transport.c_str(), result.ranks, row.dtype.c_str(), row.bytes, row.median_us, row.min_us,
                row.max_us, algbw, algbw * busbw_factor(row.op, result.ranks), row.limit_us / row.median_us,
                row.wrong == 0 ? "ok" : "WRONG");
    if (row.mpi_us)
      std::printf(" %11.1f %7.2f  %s", *row.mpi_us, *row.mpi_us / row.median_us, row.mpi_settings.c_str());
    std::printf("\n");
    if (row.wrong > 0)
      std::printf("  %llu elements differ from a plain loop's\n", static_cast<unsigned long long>(row.wrong));
  }
  for (const WaitingFigure& figure : result.waiting)
    std::printf("a rank that waits a second for a late peer uses %.1f %% of a processor\n", figure.cpu_percent);
  for (const PriorityFigure& figure : result.priority)
    std::printf(
        "an urgent 1 MiB gather takes %.0f us, behind 256 MiB of buckets %.0f us (%.1f times); the buckets %.0f us\n",
        figure.idle_us, figure.queued_us, figure.queued_us / figure.idle_us, figure.buckets_us);
}

}  // namespace

double busbw_factor(const std::string& op, int ranks) {
  const double n = ranks;
  return (op == "all_reduce" ? 2 : 1) * (n - 1) / n;
}

void print_collectives(const CollectivesResult& result, const CollectivesOptions& options) {
  if (!options.json && !options.csv) return print_table(result);
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const CollectivesRow& row : result.rows) all.push_back(to_json(row, result));
  if (options.csv) return print_csv(all);
  for (const WaitingFigure& figure : result.waiting)
    all.push_back({{"op", "waiting"}, {"ranks", result.ranks}, {"cpu_percent", figure.cpu_percent}});
  for (const PriorityFigure& figure : result.priority)
    all.push_back({{"op", "urgent_gather"},
                   {"ranks", result.ranks},
                   {"idle_us", figure.idle_us},
                   {"queued_us", figure.queued_us},
                   {"ratio", figure.queued_us / figure.idle_us},
                   {"buckets_us", figure.buckets_us}});
  std::printf("%s\n", all.dump(2).c_str());
}

// ---- The picture: log2 of the size to the right, bus bandwidth upwards ----

std::string draw_collectives(const CollectivesResult& result) {
  constexpr double kWidth = 820, kHeight = 420, kLeft = 70, kRight = 240, kTop = 50, kBottom = 60;
  constexpr const char* kColours[] = {"#1d5fa7", "#2a8c5a", "#d1495b", "#6a4c93", "#e07b39",
                                      "#00838f", "#8d6e63", "#f2b134", "#6b7785"};
  struct Line {
    std::vector<std::pair<double, double>> points;  // log2(bytes), GB/s
    bool mpi = false;
    std::size_t colour = 0;
  };
  std::map<std::string, Line> lines;
  std::map<std::string, std::size_t> colours;
  double low = 1e9, high = 0, most = 0;
  for (const CollectivesRow& row : result.rows) {
    const std::string name =
        row.op + (row.dtype == "f32" ? "" : " " + row.dtype) + (row.algorithm == "auto" ? "" : ", " + row.algorithm);
    const std::size_t colour = colours.emplace(name, colours.size()).first->second % std::size(kColours);
    const double x = std::log2(static_cast<double>(row.bytes)), factor = busbw_factor(row.op, result.ranks);
    const auto add = [&](const std::string& label, double us, bool mpi) {
      Line& line = lines[label];
      line.points.push_back({x, algbw_gbps(row, us) * factor});
      line.mpi = mpi;
      line.colour = colour;
      most = std::max(most, line.points.back().second);
    };
    add(name, row.median_us, false);
    if (row.mpi_us) add(name + ", Open MPI", *row.mpi_us, true);
    low = std::min(low, x);
    high = std::max(high, x);
  }
  if (high <= low) high = low + 1;
  const double step = std::max(1.0, std::ceil(most / 6));
  const double top = std::max(step, std::ceil(most / step) * step);
  const auto px = [&](double x) { return kLeft + (x - low) / (high - low) * (kWidth - kLeft - kRight); };
  const auto py = [&](double y) { return kHeight - kBottom - y / top * (kHeight - kTop - kBottom); };
  std::string svg = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" )"
      R"(font-family="'DejaVu Sans', Verdana, Helvetica, Arial, sans-serif" font-size="12">)"
      "\n"
      R"(<rect width="100%" height="100%" fill="#ffffff"/>)"
      "\n"
      R"(<text x="{2:.0f}" y="26" font-size="14" font-weight="bold">Bus bandwidth (GB/s) over bytes, {3} ranks over {4}</text>)"
      "\n",
      kWidth, kHeight, kLeft, result.ranks, result.transport);
  for (double y = 0; y <= top + 1e-9; y += step)
    svg += fmt::format(
        R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="#e6eaee"/><text x="{:.1f}" y="{:.1f}" text-anchor="end" fill="#6b7785">{:.0f}</text>)"
        "\n",
        kLeft, py(y), kWidth - kRight, py(y), kLeft - 8, py(y) + 4, y);
  for (double x = std::ceil(low); x <= high + 1e-9; x += std::max(1.0, std::ceil((high - low) / 8)))
    svg += fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle" fill="#6b7785">{}</text>)"
                       "\n",
                       px(x), kHeight - kBottom + 20, human_bytes(std::exp2(x)));
  double label_y = kTop + 10;
  for (auto& [name, line] : lines) {
    std::sort(line.points.begin(), line.points.end());
    std::string path;
    for (const auto& [x, y] : line.points)
      path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "M" : " L", px(x), py(y));
    const char* const colour = kColours[line.colour];
    const char* const dash = line.mpi ? R"(stroke-dasharray="5 4")" : "";
    svg += fmt::format(R"(<path d="{}" fill="none" stroke="{}" stroke-width="2" {}/>)"
                       "\n",
                       path, colour, dash);
    if (!line.mpi)
      for (const auto& [x, y] : line.points)
        svg += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="{}"/>)"
                           "\n",
                           px(x), py(y), colour);
    svg += fmt::format(
        R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}" stroke-width="2" {}/><text x="{:.1f}" y="{:.1f}">{}</text>)"
        "\n",
        kWidth - kRight + 12, label_y, kWidth - kRight + 32, label_y, colour, dash, kWidth - kRight + 38, label_y + 4,
        name);
    label_y += 18;
  }
  return svg + "</svg>\n";
}

void plot_collectives(const CollectivesResult& result, const std::string& path) {
  std::ofstream out(path);
  if (!(out << draw_collectives(result)).flush()) throw UserError("cannot write '" + path + "'");
}

}  // namespace bellows
