# A portable build has the processor's code in variants, of which the server loads the best that runs. Some compilers do not
# know the instructions of the newest ones (SME: gcc before 14), and upstream asks for them all the same. Such a variant is
# made empty and lies apart, where no server looks for it: the next best one is taken instead.

include(CheckCXXCompilerFlag)

foreach(variant armv9.2_1 armv9.2_2)
    set(target ggml-cpu-${variant})
    if (TARGET ${target})
        check_cxx_compiler_flag(-march=armv9.2-a+sme LLAMA_RUN_HAS_SME)
        if (NOT LLAMA_RUN_HAS_SME)
            set_target_properties(${target} PROPERTIES
                SOURCES ${CMAKE_CURRENT_LIST_DIR}/no_variant.cpp
                COMPILE_OPTIONS ""
                LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/no-variants)
        endif()
    endif()
endforeach()
