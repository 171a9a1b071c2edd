// Prints the names that CAIRN_KERNELS takes on this machine, best first, one per line.
#include <cstdio>
#include <string>

#include "cairn/kernels/dispatch.h"

int main() {
  for (const std::string& name : cairn::kernel_targets()) std::printf("%s\n", name.c_str());
}
