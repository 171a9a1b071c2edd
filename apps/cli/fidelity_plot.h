// The picture of a measurement: KL over bits per number, both on log axes, as an SVG that needs
// nothing beside itself.
#ifndef CAIRN_APPS_CLI_FIDELITY_PLOT_H_
#define CAIRN_APPS_CLI_FIDELITY_PLOT_H_

#include <optional>
#include <span>
#include <string>

#include "cairn/runtime/fidelity.h"

namespace cairn::cli {

struct FidelityPlot {
  std::string title;
  std::string subtitle;
  double kl = 0;                      // drawn as a line
  std::optional<size_t> recommended;  // drawn apart
};

// Every scheme is a point with the bar of its interval and its name; a KL of 0 lies on the bottom.
// REQUIRES: there is a scheme.
std::string svg(std::span<const SchemeFidelity> schemes, const FidelityPlot& plot);

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_FIDELITY_PLOT_H_
