# The libraries we stand on, all from the distribution. Each becomes an imported target.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(LIBUV REQUIRED IMPORTED_TARGET libuv>=1.44)
pkg_check_modules(LIBYAML REQUIRED IMPORTED_TARGET yaml-0.1>=0.2.5)
pkg_check_modules(LIBSYSTEMD IMPORTED_TARGET libsystemd)
find_path(FLATBUFFERS_INCLUDE_DIR flatbuffers/flatbuffers.h REQUIRED)
find_program(TOPKD_FLATC flatc REQUIRED)
if(TOPKD_TESTS)
  find_package(nng 1.5 REQUIRED CONFIG) # tests speak to the daemon with it, and to the library
  pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
endif()
