// A variant of the processor's code that the compiler cannot make: see cpu_variants.cmake.
