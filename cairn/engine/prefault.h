// Memory for pages that are about to be filled, from several threads at once.
#ifndef CAIRN_ENGINE_PREFAULT_H_
#define CAIRN_ENGINE_PREFAULT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn {

// On up to `threads` threads, of which the caller's is one. Where the system has to find the memory
// (a virtual machine gets it from its host), this is most of what a restore takes; readers that
// touch pages as they come to them clear the same huge page twice wherever two of them meet in it.
void prefault_pages(std::vector<std::span<std::byte>> pages, uint32_t threads);

}  // namespace cairn

#endif  // CAIRN_ENGINE_PREFAULT_H_
