# Warnings and sanitizers for our own code: link a target with topkd_flags.
add_library(topkd_flags INTERFACE)
set(topkd_warnings -Wall -Wextra -Wconversion -Wshadow -Wpointer-arith -Wwrite-strings)
target_compile_options(topkd_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C>:${topkd_warnings} -Wstrict-prototypes -Wmissing-prototypes>
  $<$<COMPILE_LANGUAGE:CXX>:${topkd_warnings}>)
target_compile_definitions(topkd_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:_GNU_SOURCE>)
if(TOPKD_WERROR)
  target_compile_options(topkd_flags INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()
if(TOPKD_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang" OR NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "TOPKD_FUZZ=ON needs clang, which brings libFuzzer: configure with "
                        "--preset fuzz, or set CMAKE_C_COMPILER and CMAKE_CXX_COMPILER")
  endif()
  # All our code reports coverage to libFuzzer, so that a target sees into the libraries; and the
  # assertions in headers of others are on, so that no input reaches one.
  target_compile_options(topkd_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=fuzzer-no-link -UNDEBUG>)
  if(NOT TOPKD_SANITIZE)
    set(TOPKD_SANITIZE address,undefined)
  endif()
endif()
if(TOPKD_SANITIZE)
  # nvcc does not know the sanitizers' flags; device code is checked by compute-sanitizer.
  target_compile_options(topkd_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${TOPKD_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all>)
  target_link_options(topkd_flags INTERFACE -fsanitize=${TOPKD_SANITIZE})
endif()
