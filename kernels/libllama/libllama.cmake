# What llama-run compiles into libllama itself, included by the patched src/CMakeLists.txt.

set(llama_run_sources
    ${CMAKE_CURRENT_LIST_DIR}/expert_counter.cpp
    ${CMAKE_CURRENT_LIST_DIR}/state_copies.cpp
    ${CMAKE_CURRENT_LIST_DIR}/state_rows.cpp
    ${CMAKE_CURRENT_LIST_DIR}/state_settings.cpp)
target_sources(llama PRIVATE ${llama_run_sources})
target_include_directories(llama PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_LIST_DIR}>)

# src/ builds its model files as one unit; these are not among them
set_source_files_properties(${llama_run_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
