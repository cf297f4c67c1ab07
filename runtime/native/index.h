// index.txt, the launcher's share of a bundle's manifest (fa3/contract.py writes it and is its description).
#pragma once

#include <string>
#include <vector>

#include "spec.h"

namespace fa3 {

struct Index {
  std::string arch;
  std::vector<Spec> kernels;  // sorted by name
};

// Throws FA3_BAD_BUNDLE with the line where the text is not what this version reads.
Index parse_index(const std::string& text);

}  // namespace fa3
