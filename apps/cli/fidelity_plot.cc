#include "apps/cli/fidelity_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace cairn::cli {
namespace {

// Pixels, y downwards.
struct Point {
  double x = 0, y = 0;
};
struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;
  bool meets(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
  bool holds(const Box& other) const {
    return left <= other.left && other.right <= right && top <= other.top && other.bottom <= bottom;
  }
  Point nearest_to(Point point) const {
    return {std::clamp(point.x, left, right), std::clamp(point.y, top, bottom)};
  }
  double distance(Point point) const {
    const Point nearest = nearest_to(point);
    return std::hypot(point.x - nearest.x, point.y - nearest.y);
  }
};

constexpr double kWidth = 960, kHeight = 600;
constexpr Box kArea{.left = 84, .top = 84, .right = 930, .bottom = 536};
constexpr double kRadius = 4.5;
constexpr double kApart = 16;                // of a name from others' points
constexpr double kLetter = 7.9, kLine = 16;  // of a name: 13 pixels high, of equal widths
constexpr const char* kInk = "#1f2933";
constexpr const char* kFaint = "#6b7785";
constexpr const char* kGrid = "#e4e8ec";
constexpr const char* kDot = "#2563ab";
constexpr const char* kChosen = "#15803d";
constexpr const char* kLimit = "#b45309";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else
      out += c;
  }
  return out;
}

// A log axis from one number to another, over pixels.
struct Axis {
  double from = 1, to = 10;
  double from_pixel = 0, to_pixel = 0;
  double pixel(double number) const {
    const double at = std::log(std::clamp(number, from, to) / from) / std::log(to / from);
    return from_pixel + at * (to_pixel - from_pixel);
  }
};

Axis bits_axis(std::span<const SchemeFidelity> schemes) {
  const auto [least, most] =
      std::ranges::minmax(schemes, {}, [](const SchemeFidelity& s) { return s.bits_per_number; });
  return {.from = least.bits_per_number / 1.15,
          .to = most.bits_per_number * 1.15,
          .from_pixel = kArea.left,
          .to_pixel = kArea.right};
}

// Whole decades, so that each has a line and a number.
Axis kl_axis(std::span<const SchemeFidelity> schemes, double kl) {
  double least = kl, most = kl;
  for (const SchemeFidelity& scheme : schemes)
    for (const double number : {scheme.kl_low, scheme.kl_mean, scheme.kl_high}) {
      if (number <= 0) continue;
      least = std::min(least, number);
      most = std::max(most, number);
    }
  return {.from = std::pow(10, std::floor(std::log10(least) - 0.05)),
          .to = std::pow(10, std::ceil(std::log10(most) + 0.05)),
          .from_pixel = kArea.bottom,
          .to_pixel = kArea.top};
}

Box box_around(Point middle, double half_width, double half_height) {
  return {middle.x - half_width, middle.y - half_height, middle.x + half_width,
          middle.y + half_height};
}

// A name that lies further from its point is joined to it by a line.
constexpr double kJoined = 16;

// Puts names where nothing else lies: as near to their points as they find room, and, if there is
// room, apart from any other point, so that nobody takes one for another's.
class Names {
 public:
  explicit Names(std::span<const Point> points) : points_(points) {}
  void keep_free(const Box& box) { taken_.push_back(box); }

  // Where the name's box lies.
  Box place(Point point, size_t letters) {
    const double half = kLetter * static_cast<double>(letters) / 2;
    for (const double apart : {kApart, 0.0})
      for (double distance = 10; distance < kWidth; distance += 6)
        for (const auto& [x, y] : {Point{1, 0},
                                   {-1, 0},
                                   {1, -0.8},
                                   {1, 0.8},
                                   {-1, -0.8},
                                   {-1, 0.8},
                                   {0, -1.2},
                                   {0, 1.2}}) {
          const Box box = box_around(
              {point.x + x * (distance + half), point.y + y * (distance + 4)}, half, kLine / 2);
          if (!is_free(box, point, apart)) continue;
          take(box, point);
          return box;
        }
    return box_around(point, half, kLine / 2);  // a picture without any room left
  }

 private:
  bool is_free(const Box& box, Point own, double apart) const {
    const auto meets = [&](const Box& other) { return box.meets(other); };
    const auto is_near = [&](const Point& other) {
      return std::hypot(other.x - own.x, other.y - own.y) > 0 && box.distance(other) < apart;
    };
    const auto is_crossed = [&](const Box& name) {
      return std::ranges::any_of(line_boxes(box, own),
                                 [&](const Box& part) { return part.meets(name); });
    };
    return kArea.holds(box) && std::ranges::none_of(taken_, meets) &&
           std::ranges::none_of(names_, meets) && std::ranges::none_of(points_, is_near) &&
           std::ranges::none_of(names_, is_crossed);
  }

  void take(const Box& box, Point own) {
    names_.push_back(box);
    for (const Box& part : line_boxes(box, own)) taken_.push_back(part);
  }

  // Small ones along the line to the point; none where there is no line.
  static std::vector<Box> line_boxes(const Box& box, Point own) {
    std::vector<Box> boxes;
    if (box.distance(own) <= kJoined) return boxes;
    const Point end = box.nearest_to(own);
    for (double at = 0.05; at < 1; at += 0.05)
      boxes.push_back(
          box_around({own.x + at * (end.x - own.x), own.y + at * (end.y - own.y)}, 1, 1));
    return boxes;
  }

  std::span<const Point> points_;
  std::vector<Box> taken_, names_;
};

// Where each scheme stands. Points that would cover each other stand side by side.
std::vector<Point> points_of(std::span<const SchemeFidelity> schemes,
                             const Axis& bits,
                             const Axis& kl) {
  std::vector<Point> points;
  for (const SchemeFidelity& scheme : schemes) {
    Point point{bits.pixel(scheme.bits_per_number), kl.pixel(scheme.kl_mean)};
    const auto is_covered = [&](const Point& other) {
      return std::hypot(point.x - other.x, point.y - other.y) < 4 * kRadius &&
             std::fabs(point.x - other.x) < 2 * kRadius;
    };
    while (std::ranges::any_of(points, is_covered)) point.x += 2 * kRadius + 3;
    points.push_back(point);
  }
  return points;
}

std::string line(Point from, Point to, const char* color, double width, const char* more = "") {
  return fmt::format(
      R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}" stroke-width="{}"{}/>)"
      "\n",
      from.x, from.y, to.x, to.y, color, width, more);
}

std::string text(Point at,
                 std::string_view words,
                 const char* color,
                 const char* anchor,
                 std::string_view more = "") {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" fill="{}" text-anchor="{}"{}>{}</text>)"
                     "\n",
                     at.x, at.y, color, anchor, more, escaped(words));
}

std::string bits_ticks(const Axis& bits) {
  std::string out;
  for (const int tick : {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32}) {
    if (tick < bits.from || tick > bits.to) continue;
    const double x = bits.pixel(tick);
    out += line({x, kArea.top}, {x, kArea.bottom}, kGrid, 1);
    out += text({x, kArea.bottom + 20}, std::to_string(tick), kFaint, "middle");
  }
  return out + text({(kArea.left + kArea.right) / 2, kArea.bottom + 44},
                    "stored bits per number of the state", kInk, "middle");
}

std::string kl_ticks(const Axis& kl) {
  std::string out;
  const int first = static_cast<int>(std::lround(std::log10(kl.from)));
  const int last = static_cast<int>(std::lround(std::log10(kl.to)));
  for (int decade = first; decade <= last; ++decade) {
    const double y = kl.pixel(std::pow(10, decade));
    out += line({kArea.left, y}, {kArea.right, y}, kGrid, 1);
    out +=
        text({kArea.left - 10, y + 4},
             decade > -4 ? fmt::format("{:g}", std::pow(10, decade)) : fmt::format("1e{}", decade),
             kFaint, "end");
  }
  return out + text({0, 0}, "mean KL from the f32 state (nats per token)", kInk, "middle",
                    fmt::format(R"x( transform="translate(22 {:.1f}) rotate(-90)")x",
                                (kArea.top + kArea.bottom) / 2));
}

}  // namespace

std::string svg(std::span<const SchemeFidelity> schemes, const FidelityPlot& plot) {
  const Axis bits = bits_axis(schemes), kl = kl_axis(schemes, plot.kl);
  std::string out = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" )"
      R"(font-family="system-ui, 'DejaVu Sans', sans-serif" font-size="13">)"
      "\n"
      R"(<rect width="{0}" height="{1}" fill="white"/>)"
      "\n",
      kWidth, kHeight);
  out += text({kArea.left, 34}, plot.title, kInk, "start", R"( font-size="18" font-weight="600")");
  out += text({kArea.left, 58}, plot.subtitle, kFaint, "start");
  out += bits_ticks(bits) + kl_ticks(kl);

  const std::vector<Point> points = points_of(schemes, bits, kl);
  Names names(points);
  const double limit = kl.pixel(plot.kl);
  const std::string limit_name = fmt::format("KL {:g}", plot.kl);
  out += line({kArea.left, limit}, {kArea.right, limit}, kLimit, 1.2, R"( stroke-dasharray="6 4")");
  out += text({kArea.left + 8, limit - 6}, limit_name, kLimit, "start");
  names.keep_free({kArea.left, limit - kLine - 4, kArea.left + 100, limit + 2});
  names.keep_free({kArea.left, limit - 1, kArea.right, limit + 1});

  const auto ends_of = [&](size_t i) {
    return std::pair(Point{points[i].x, kl.pixel(schemes[i].kl_low)},
                     Point{points[i].x, kl.pixel(schemes[i].kl_high)});
  };
  for (size_t i = 0; i < schemes.size(); ++i) {
    const auto [low, high] = ends_of(i);
    names.keep_free(box_around(points[i], kRadius + 2, kRadius + 2));
    names.keep_free({high.x - 4, high.y - 1, low.x + 4, low.y + 1});
  }
  for (size_t i = 0; i < schemes.size(); ++i) {
    const SchemeFidelity& scheme = schemes[i];
    const bool is_chosen = plot.recommended == i;
    const char* color = is_chosen ? kChosen : kDot;
    const Point at = points[i];
    const auto [low, high] = ends_of(i);
    const Box name = names.place(at, scheme.scheme.size());
    if (name.distance(at) > kJoined) out += line(at, name.nearest_to(at), kFaint, 0.8);
    out += line(low, high, color, 1.6);
    for (const Point& end : {low, high})
      out += line({end.x - 4, end.y}, {end.x + 4, end.y}, color, 1.6);
    out += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="{}" fill="{}"/>)"
                       "\n",
                       at.x, at.y, kRadius, color);
    out += text({(name.left + name.right) / 2, name.bottom - 4}, scheme.scheme,
                is_chosen ? kChosen : kInk, "middle",
                fmt::format(R"( class="scheme" font-family="'DejaVu Sans Mono', monospace"{})",
                            is_chosen ? R"( font-weight="700")" : ""));
  }
  return out + "</svg>\n";
}

}  // namespace cairn::cli
