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
if(TOPKD_SANITIZE)
  # nvcc does not know the sanitizers' flags; device code is checked by compute-sanitizer.
  target_compile_options(topkd_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${TOPKD_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all>)
  target_link_options(topkd_flags INTERFACE -fsanitize=${TOPKD_SANITIZE})
endif()
