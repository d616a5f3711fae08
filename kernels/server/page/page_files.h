// The page's files, as they were when the server was built: embed.cmake writes them into a source file.
#pragma once

#include <map>
#include <string>

namespace llama_run {

std::map<std::string, std::string> page_files(); // by name

} // namespace llama_run
