#include "plot.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "bellows/base/config.h"
#include "bellows/base/error.h"
#include "bellows/elastic/session.h"
#include "command.h"

extern char** environ;

namespace fs = std::filesystem;

namespace bellows {
namespace {

constexpr double kWidth = 1120, kLeft = 84, kRight = 36;
constexpr double kPlotWidth = kWidth - kLeft - kRight;
constexpr std::size_t kMostPoints = 1500;  // more cannot be told apart
constexpr std::size_t kMostChanges = 8;    // listed under the picture

constexpr const char* kInk = "#1f2933";
constexpr const char* kGrey = "#6b7785";
constexpr const char* kGrid = "#e6eaee";
constexpr const char* kLoss = "#1d5fa7";
constexpr const char* kLossFaint = "#a9c6e4";
constexpr const char* kHeldOut = "#d1495b";
constexpr const char* kMfu = "#2a8c5a";
constexpr const char* kMfuFaint = "#b5dcc6";
constexpr const char* kWorld = "#6a4c93";
constexpr const char* kLost = "#c0392b";
// White around letters, so that a line that passes behind them leaves them readable.
constexpr const char* kHalo = R"(stroke="#ffffff" stroke-width="5" stroke-linejoin="round" paint-order="stroke")";

struct AccountLook {
  std::string_view name, colour;
  const char* ink;  // of what is written on it
};
constexpr AccountLook kAccountLooks[] = {
    {"compute", "#1d5fa7", "#ffffff"},
    {"exposed_collective", "#e07b39", "#ffffff"},
    {"straggler_wait", "#d1495b", "#ffffff"},
    {"data_wait", "#8d6e63", "#ffffff"},
    {"optimizer", "#2a8c5a", "#ffffff"},
    {"transfer", "#00838f", "#ffffff"},
    {"checkpoint", "#6a4c93", "#ffffff"},
    {"reconfiguration", "#f2b134", kInk},
    {"idle", "#b8c1cb", kInk},
};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string shortened(const std::string& text, std::size_t most) {
  if (text.size() <= most) return text;
  std::size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // not inside a UTF-8 sequence
  return text.substr(0, end) + "…";
}

// 1, 2 or 5 times a power of ten, so that about `count` of them span `range`.
double nice_step(double range, int count) {
  const double raw = std::max(range, 1e-12) / count, power = std::pow(10, std::floor(std::log10(raw)));
  const double times = raw / power;
  return power * (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10);
}

/// Text of the picture, piece by piece.
class Svg {
 public:
  void line(double x1, double y1, double x2, double y2, const char* colour, const char* more = "") {
    body_ += fmt::format(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}" {}/>)"
                         "\n",
                         x1, y1, x2, y2, colour, more);
  }
  void rect(double x, double y, double width, double height, std::string_view colour, const char* more = "") {
    body_ += fmt::format(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.2f}" height="{:.1f}" fill="{}" {}/>)"
                         "\n",
                         x, y, width, height, colour, more);
  }
  void circle(double x, double y, double radius, const char* fill, const char* more = "") {
    body_ += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="{:.1f}" fill="{}" {}/>)"
                         "\n",
                         x, y, radius, fill, more);
  }
  void text(double x, double y, const std::string& words, const char* anchor = "start", int size = 13,
            const char* colour = kInk, const char* more = "") {
    body_ += fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" font-size="{}" fill="{}" {}>{}</text>)"
                         "\n",
                         x, y, anchor, size, colour, more, escaped(words));
  }
  void path(const std::string& d, const char* colour, double width, const char* more = "") {
    if (d.empty()) return;
    body_ += fmt::format(R"(<path d="{}" fill="none" stroke="{}" stroke-width="{}" stroke-linejoin="round" {}/>)"
                         "\n",
                         d, colour, width, more);
  }
  void raw(const std::string& piece) { body_ += piece; }
  std::string document(double height, const std::string& title) const {
    return fmt::format(
               R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" )"
               R"(font-family="'DejaVu Sans', Verdana, Helvetica, Arial, sans-serif">)"
               "\n<title>{2}</title>\n"
               R"(<rect width="100%" height="100%" fill="#ffffff"/>)"
               "\n",
               kWidth, height, escaped(title)) +
           body_ + "</svg>\n";
  }

 private:
  std::string body_;
};

/// A rectangle of the picture with two linear axes.
struct Panel {
  double top = 0, height = 0;
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;

  double x(double value) const { return kLeft + (value - x_low) / (x_high - x_low) * kPlotWidth; }
  double y(double value) const { return top + height - (value - y_low) / (y_high - y_low) * height; }
  double bottom() const { return top + height; }

  void frame(Svg& svg, const std::string& title, const std::string& unit, double y_step,
             const std::function<std::string(double)>& label) const {
    svg.text(kLeft, top - 10, title, "start", 14, kInk, fmt::format(R"(font-weight="bold" {})", kHalo).c_str());
    svg.raw(fmt::format(R"svg(<text transform="translate({:.1f} {:.1f}) rotate(-90)" text-anchor="middle" )svg"
                        R"(font-size="12" fill="{}">{}</text>)"
                        "\n",
                        kLeft - 50, top + height / 2, kGrey, escaped(unit)));
    for (double v = std::ceil(y_low / y_step - 1e-9) * y_step; v <= y_high + 1e-9 * y_step; v += y_step) {
      svg.line(kLeft, y(v), kLeft + kPlotWidth, y(v), kGrid);
      svg.text(kLeft - 10, y(v) + 4.5, label(std::abs(v) < 1e-9 * y_step ? 0.0 : v), "end", 12, kGrey);
    }
    svg.line(kLeft, bottom(), kLeft + kPlotWidth, bottom(), "#9aa5b1");
  }
};

/// Values over steps; what is not a number leaves a gap.
using Series = std::vector<std::pair<double, double>>;

// A centred mean; at the ends the window narrows, so the first and last value stay what they are.
Series smoothed(const Series& series, std::size_t half) {
  Series out;
  for (std::size_t i = 0; i < series.size(); ++i) {
    const std::size_t reach = std::min({half, i, series.size() - 1 - i});
    double sum = 0;
    int count = 0;
    for (std::size_t k = i - reach; k <= i + reach; ++k)
      if (std::isfinite(series[k].second)) sum += series[k].second, ++count;
    out.push_back({series[i].first, count && std::isfinite(series[i].second) ? sum / count : std::nan("")});
  }
  return out;
}

// One point for many where there are more than the eye can tell apart: the lowest and highest of each group.
Series thinned(const Series& series) {
  if (series.size() <= kMostPoints) return series;
  const std::size_t group = (series.size() * 2 + kMostPoints - 1) / kMostPoints;
  Series out;
  for (std::size_t at = 0; at < series.size(); at += group) {
    const auto begin = series.begin() + static_cast<long>(at);
    const auto end = series.begin() + static_cast<long>(std::min(series.size(), at + group));
    auto [low, high] = std::minmax_element(begin, end, [](auto& a, auto& b) { return a.second < b.second; });
    if (low > high) std::swap(low, high);
    out.push_back(*low);
    if (high != low) out.push_back(*high);
  }
  return out;
}

std::string curve(const Panel& panel, const Series& series) {
  std::string d;
  bool gap = true;
  for (const auto& [x, y] : thinned(series)) {
    if (std::isfinite(y)) d += fmt::format("{}{:.1f} {:.1f} ", gap ? "M" : "L", panel.x(x), panel.y(y));
    gap = !std::isfinite(y);
  }
  return d;
}

std::pair<double, double> range_of(const Series& series) {
  double low = INFINITY, high = -INFINITY;
  for (const auto& [x, y] : series)
    if (std::isfinite(y)) low = std::min(low, y), high = std::max(high, y);
  return low <= high ? std::pair(low, high) : std::pair(0.0, 1.0);
}

void legend_entry(Svg& svg, double* right, double y, const std::string& words, const char* colour, bool dot,
                  double width) {
  *right -= 6.9 * static_cast<double>(words.size());
  svg.text(*right, y + 4, words, "start", 12, kGrey, kHalo);
  *right -= 30;
  svg.rect(*right - 4, y - 7, 30, 14, "#ffffff");
  svg.line(*right, y, *right + 22, y, colour, fmt::format(R"(stroke-width="{}")", width).c_str());
  if (dot) svg.circle(*right + 11, y, 3.6, colour);
  *right -= 14;
}

void draw_loss(Svg& svg, Panel panel, const MetricsFile& run, std::size_t half) {
  Series raw, held;
  for (const auto& s : run.steps) raw.push_back({static_cast<double>(s.step), s.loss});
  for (const auto& e : run.evaluations) held.push_back({static_cast<double>(e.step), e.loss});
  auto [low, high] = range_of(raw);
  if (!held.empty()) {
    const auto [held_low, held_high] = range_of(held);
    low = std::min(low, held_low), high = std::max(high, held_high);
  }
  const double step = nice_step(std::max(high - low, 1e-6), 5);
  panel.y_low = std::floor(low / step) * step;
  panel.y_high = std::ceil(high / step) * step;
  if (panel.y_high <= panel.y_low) panel.y_high = panel.y_low + step;
  panel.frame(svg, "Loss", "nats per token", step,
              [&](double v) { return fmt::format("{:g}", std::round(v / step) * step); });
  svg.path(curve(panel, raw), kLossFaint, 1);
  svg.path(curve(panel, smoothed(raw, half)), kLoss, 2.2);
  svg.path(curve(panel, held), kHeldOut, 1.2, R"(stroke-dasharray="3 3")");
  if (held.size() <= 60)
    for (const auto& [x, y] : held)
      svg.circle(panel.x(x), panel.y(y), 4, kHeldOut, R"(stroke="#ffffff" stroke-width="1.2")");
  double right = kLeft + kPlotWidth - 4;
  const double y = panel.top + 14;
  if (!held.empty()) legend_entry(svg, &right, y, "held-out", kHeldOut, true, 1.2);
  legend_entry(svg, &right, y, "every step", kLossFaint, false, 1.4);
  legend_entry(svg, &right, y, half > 0 ? fmt::format("training, mean of {} steps", 2 * half + 1) : "training", kLoss,
               false, 2.4);
}

void draw_mfu(Svg& svg, Panel panel, const MetricsFile& run, std::size_t half) {
  Series raw;
  for (const auto& s : run.steps) raw.push_back({static_cast<double>(s.step), s.mfu ? *s.mfu * 100 : std::nan("")});
  const Series mean = smoothed(raw, half);
  panel.y_low = 0;
  const double high = run.has_mfu() ? std::max(range_of(mean).second * 1.25, 1.0) : 100;
  const double step = nice_step(high, 4);
  panel.y_high = std::ceil(high / step) * step;
  panel.frame(svg, "Model FLOPs utilisation (MFU)", "% of peak", step, [](double v) { return fmt::format("{:g}", v); });
  if (!run.has_mfu())
    return svg.text(kLeft + kPlotWidth / 2, panel.top + panel.height / 2, "unavailable: the device's peak is unknown",
                    "middle", 13, kGrey);
  svg.raw(fmt::format(R"(<clipPath id="mfu"><rect x="{}" y="{}" width="{}" height="{}"/></clipPath>)"
                      "\n",
                      kLeft, panel.top, kPlotWidth, panel.height));
  svg.path(curve(panel, raw), kMfuFaint, 1, "clip-path='url(#mfu)'");
  svg.path(curve(panel, mean), kMfu, 2.2, "clip-path='url(#mfu)'");
}

void draw_world(Svg& svg, Panel panel, const MetricsFile& run) {
  int most = 1;
  for (const auto& s : run.steps) most = std::max(most, s.world_size);
  const double step = std::max(1.0, nice_step(most, 4));
  panel.y_low = 0;
  panel.y_high = most + 0.35 * step;
  panel.frame(svg, "World size", "ranks", step, [](double v) { return fmt::format("{:g}", v); });
  std::string d;
  for (std::size_t i = 0; i < run.steps.size(); ++i) {
    const auto& s = run.steps[i];
    if (i > 0 && s.world_size == run.steps[i - 1].world_size && i + 1 < run.steps.size()) continue;
    const double y = panel.y(s.world_size);
    if (d.empty())
      d = fmt::format("M{:.1f} {:.1f} ", kLeft, y);  // the first step has run from the axis on
    else
      d += fmt::format("H{:.1f} V{:.1f} ", panel.x(static_cast<double>(run.steps[i - 1].step)), y);
    if (i + 1 == run.steps.size()) d += fmt::format("H{:.1f} ", panel.x(static_cast<double>(s.step)));
  }
  svg.path(d + fmt::format("V{:.1f} H{:.1f} Z", panel.bottom(), kLeft), "none", 0,
           R"(style="fill:#6a4c93;fill-opacity:0.12")");
  svg.path(d, kWorld, 2.4);
}

void draw_step_axis(Svg& svg, const Panel& panel) {
  const double step = std::max(1.0, nice_step(panel.x_high - panel.x_low, 10));
  for (double v = std::ceil(panel.x_low / step) * step; v <= panel.x_high + 1e-9; v += step) {
    svg.line(panel.x(v), panel.bottom(), panel.x(v), panel.bottom() + 5, "#9aa5b1");
    svg.text(panel.x(v), panel.bottom() + 20, grouped(static_cast<std::int64_t>(v)), "middle", 12, kGrey);
  }
  svg.text(kLeft + kPlotWidth / 2, panel.bottom() + 40, "optimizer step", "middle", 12, kGrey);
}

void badge(Svg& svg, double x, double y, std::size_t number, const char* colour) {
  svg.circle(x, y, 9, colour);
  svg.text(x, y + 4, std::to_string(number), "middle", 11, "#ffffff", R"(font-weight="bold")");
}

// A dashed line through all panels where the world changed, with a number that the list below explains.
void draw_change_lines(Svg& svg, const Panel& first, double bottom, const MetricsFile& run) {
  const std::size_t badges = std::min(run.changes.size(), kMostChanges);
  double free_from = kLeft + 56;  // right of the panel's title
  for (std::size_t i = 0; i < run.changes.size(); ++i) {
    const auto& change = run.changes[i];
    const char* colour = change.planned ? kGrey : kLost;
    const double x = first.x(std::clamp(static_cast<double>(change.step), first.x_low, first.x_high));
    svg.line(x, first.top, x, bottom, colour, R"(stroke-width="1" stroke-dasharray="4 4" stroke-opacity="0.7")");
    if (i >= badges) continue;
    // Beside each other where they would overlap, and all of them inside the picture.
    const double room_to = kLeft + kPlotWidth - 20 * static_cast<double>(badges - 1 - i);
    const double at = std::min(std::max(x, free_from), room_to);
    badge(svg, at, first.top - 11, i + 1, colour);
    free_from = at + 20;
  }
}

double list_changes(Svg& svg, double top, const MetricsFile& run) {
  if (run.changes.empty()) return top;
  svg.text(kLeft, top + 4, "Changes of the world", "start", 14, kInk, R"(font-weight="bold")");
  double y = top + 30;
  for (std::size_t i = 0; i < std::min(run.changes.size(), kMostChanges); ++i, y += 24) {
    const auto& c = run.changes[i];
    badge(svg, kLeft + 9, y - 4, i + 1, c.planned ? kGrey : kLost);
    svg.text(kLeft + 28, y, fmt::format("step {}", grouped(c.step)), "start", 12, kInk);
    svg.text(kLeft + 116, y, fmt::format("{} → {}", c.from, c.to), "start", 12, kInk, R"(font-weight="bold")");
    svg.text(kLeft + 172, y, duration_text(c.ms), "start", 12, kGrey);
    svg.text(kLeft + 224, y, shortened(c.reason, 108), "start", 12, kInk);
  }
  if (run.changes.size() > kMostChanges) {
    svg.text(kLeft + 28, y, fmt::format("and {} more: see bellows report", run.changes.size() - kMostChanges), "start",
             12, kGrey);
    y += 24;
  }
  return y + 14;
}

double draw_accounts(Svg& svg, double top, const MetricsFile& run) {
  std::vector<double> ms;
  double total = 0;
  for (const auto& [name, value] : run.accounts_ms) {
    ms.push_back(value);
    total += value;
  }
  if (!(total > 0)) return top;
  const std::vector<int> shares = tenths_of_percent(ms);
  svg.text(kLeft, top + 4, fmt::format("Where the time of rank 0 went: {} in all", duration_text(total)), "start", 14,
           kInk, R"(font-weight="bold")");
  double x = kLeft, legend_y = top + 70;
  std::size_t column = 0;
  for (std::size_t i = 0; i < ms.size(); ++i) {
    AccountLook look{"", "#455a64", "#ffffff"};
    for (const AccountLook& known : kAccountLooks)
      if (known.name == run.accounts_ms[i].first) look = known;
    const double width = ms[i] / total * kPlotWidth;
    svg.rect(x, top + 20, width, 28, look.colour);
    if (width > 60)
      svg.text(x + width / 2, top + 38.5, fmt::format("{:.1f} %", shares[i] / 10.0), "middle", 12, look.ink);
    x += width;
    std::string name = run.accounts_ms[i].first;
    std::replace(name.begin(), name.end(), '_', ' ');
    const double at = kLeft + static_cast<double>(column) * kPlotWidth / 5;
    svg.rect(at, legend_y - 10, 12, 12, look.colour, R"(rx="2")");
    svg.text(at + 18, legend_y, fmt::format("{} {:.1f} %", name, shares[i] / 10.0), "start", 12, kInk);
    if (++column == 5) column = 0, legend_y += 22;
  }
  return legend_y + (column ? 30 : 8);
}

std::string subtitle(const MetricsFile& run) {
  std::string text =
      fmt::format("{} steps · {} tokens · {} · loss {} → {}", grouped(run.steps.back().step),
                  grouped(static_cast<std::int64_t>(run.tokens_with_repeats)), duration_text(run.wall_ms),
                  loss_text(run.steps.front().loss, 3), loss_text(run.final_loss(), 3));
  if (!run.evaluations.empty()) text += fmt::format(" · held-out {}", loss_text(run.evaluations.back().loss, 3));
  if (run.has_mfu()) text += fmt::format(" · MFU {:.1f} %", run.mean_mfu() * 100);
  if (run.repeated > 0) text += fmt::format(" · {} steps repeated", grouped(run.repeated));
  return text;
}

}  // namespace

std::string draw_run(const MetricsFile& run, const std::string& title) {
  Svg svg;
  svg.text(kLeft, 42, title, "start", 22, kInk, R"(font-weight="bold")");
  svg.text(kLeft, 66, subtitle(run), "start", 13, kGrey);

  Panel panel;
  panel.x_low = std::max(0.0, static_cast<double>(run.steps.front().step) - 1);
  panel.x_high = std::max(panel.x_low + 1, static_cast<double>(run.steps.back().step));
  const auto at = [&](double top, double height) {
    Panel other = panel;
    other.top = top;
    other.height = height;
    return other;
  };
  const Panel loss = at(120, 280), mfu = at(446, 130), world = at(622, 90);
  const std::size_t half = run.steps.size() / 120;
  draw_change_lines(svg, loss, world.bottom(), run);
  draw_loss(svg, loss, run, half);
  draw_mfu(svg, mfu, run, half);
  draw_world(svg, world, run);
  draw_step_axis(svg, world);
  double y = list_changes(svg, world.bottom() + 76, run);
  y = draw_accounts(svg, y, run);
  return svg.document(y + 6, title);
}

namespace {

/// Where the SVG goes: `asked` may be a directory, a file or empty (beside the metrics).
fs::path svg_path(const fs::path& metrics, const std::string& asked) {
  const fs::path name = metrics.stem().string() + ".svg";
  if (asked.empty()) return metrics.parent_path() / name;
  std::error_code ignored;
  if (asked.back() == '/' || fs::is_directory(asked, ignored)) {
    fs::create_directories(asked);
    return fs::path(asked) / name;
  }
  return fs::path(asked).replace_extension(".svg");
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.flush();
  if (!out) throw UserError("cannot write '" + path.string() + "': " + std::strerror(errno));
}

/// Empty, or why there is no PNG.
std::string convert_to_png(const fs::path& svg, const fs::path& png) {
  const std::string from = svg.string(), to = png.string();
  const char* argv[] = {"rsvg-convert", "--zoom", "1.5", "--output", to.c_str(), from.c_str(), nullptr};
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, argv[0], nullptr, nullptr, const_cast<char* const*>(argv), environ);
  if (error == ENOENT) return "rsvg-convert is not installed (Debian package librsvg2-bin)";
  if (error != 0) return std::string("rsvg-convert does not start: ") + std::strerror(error);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "" : "rsvg-convert failed on '" + from + "'";
}

}  // namespace

int plot_main(int argc, char** argv) {
  return run_main([&] {
    std::vector<std::string> files;
    std::string output, title;
    Settings settings("bellows plot", "draws loss, MFU, world size and time accounts of a run");
    settings.leave_unknown();
    settings.words("METRICS.jsonl", &files, "what --metrics of a trainer wrote");
    settings.add("output", &output, "file, or directory for <METRICS>.svg and .png; default: beside the metrics")
        .short_name('o')
        .value_name("PATH");
    settings.add("title", &title, "title of the picture; default: the file's name").value_name("TEXT");
    settings.example("bellows plot out/metrics.jsonl -o out", "writes out/metrics.svg and out/metrics.png");
    if (!settings.parse(argc, argv)) return 0;
    if (files.size() != 1) throw UserError("bellows plot takes one metrics file, not " + std::to_string(files.size()));
    const MetricsFile run = MetricsFile::read(files[0]);
    const fs::path svg = svg_path(files[0], output);
    write_file(svg, draw_run(run, title.empty() ? fs::path(files[0]).filename().string() : title));
    std::puts(svg.c_str());
    fs::path png = svg;
    png.replace_extension(".png");
    const std::string why_not = convert_to_png(svg, png);
    if (why_not.empty())
      std::puts(png.c_str());
    else
      std::printf("no PNG: %s\n", why_not.c_str());
    return 0;
  });
}

}  // namespace bellows
