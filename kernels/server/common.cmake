# What llama-run compiles into llama.cpp's common library, included by the patched common/CMakeLists.txt.

target_sources(llama-common PRIVATE ${CMAKE_CURRENT_LIST_DIR}/cache_args.cpp)
