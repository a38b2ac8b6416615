# What each Debian package says of itself. cpack reads this after CPackConfig.cmake (cmake/TopkdDeb.cmake).
#
# Components and packages: daemon topkd, tool topkctl, client libtopkd0, select libtopksel0,
# dev libtopkd-dev. The two libraries are two packages because each has its own so name, and because
# a client needs no selection code (with CUDA that is most of the bytes).
if(NOT CPACK_TOPKD_PREFIX STREQUAL "/usr")
  message(FATAL_ERROR "the build's prefix is ${CPACK_TOPKD_PREFIX}; packages need one configured with "
                      "-DCMAKE_INSTALL_PREFIX=/usr, as the presets package and dev do")
endif()
if(NOT CPACK_DEBIAN_PACKAGE_RELEASE)
  set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
endif()
set(version ${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})
set(debian ${CPACK_TOPKD_SOURCE_DIR}/deploy/debian)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
if(NOT CPACK_DEBIAN_COMPRESSION_TYPE)
  set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
endif()
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SOURCE topkd)
if(NOT CPACK_DEBIAN_PACKAGE_MAINTAINER)
  set(CPACK_DEBIAN_PACKAGE_MAINTAINER "topkd maintainers <maintainers@topkd.invalid>")
endif()
# As dpkg wants it: no group may write to a file of the control archive.
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

# Depends comes from the libraries that the programs are linked with; those of ours are found in the
# build and named below, since no installed package has them.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CPACK_TOPKD_BINARY_DIR}/lib)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
# An older library of the same so name lacks what was added since.
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")

set(CPACK_DEBIAN_DAEMON_PACKAGE_NAME topkd)
set(CPACK_DEBIAN_TOOL_PACKAGE_NAME topkctl)
set(CPACK_DEBIAN_CLIENT_PACKAGE_NAME libtopkd0)
set(CPACK_DEBIAN_SELECT_PACKAGE_NAME libtopksel0)
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libtopkd-dev)
set(CPACK_DEBIAN_CLIENT_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_SELECT_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)

# Daemon and tool are tested with the selection library of their own build only.
set(CPACK_DEBIAN_DAEMON_PACKAGE_DEPENDS
    "libtopksel0 (= ${version}), systemd | systemd-standalone-sysusers")
set(CPACK_DEBIAN_DAEMON_PACKAGE_RECOMMENDS topkctl)
set(CPACK_DEBIAN_TOOL_PACKAGE_DEPENDS "libtopksel0 (= ${version})")
set(CPACK_DEBIAN_TOOL_PACKAGE_SUGGESTS topkd)
set(CPACK_DEBIAN_CLIENT_PACKAGE_SUGGESTS topkd)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libtopkd0 (= ${version}), libtopksel0 (= ${version})")
set(CPACK_DEBIAN_DEV_PACKAGE_SHLIBDEPS OFF)

# The first line is the summary, a blank line a new paragraph; cpack indents as dpkg wants it.
unset(CPACK_PACKAGE_DESCRIPTION_SUMMARY)
set(about "
topkd keeps, for each row of a matrix of scores, the positions of the K
highest: the selection step of sparse attention. One daemon on a machine does
it for all processes, on NVIDIA GPUs or on the processor. Scores are read where
they are, and every answer is exact.

")
set(CPACK_DEBIAN_DAEMON_DESCRIPTION "exact top-K selection for every process of a machine${about}\
This package holds the daemon and its service.")
set(CPACK_DEBIAN_TOOL_DESCRIPTION "ask and try a topkd daemon${about}\
This package holds the control tool, which also selects from files without a
daemon.")
set(CPACK_DEBIAN_CLIENT_DESCRIPTION "client library of the topkd daemon${about}\
This package holds the library that programs talk to the daemon with.")
set(CPACK_DEBIAN_SELECT_DESCRIPTION "exact top-K selection in process${about}\
This package holds the library that selects, for the daemon and for programs
that select in their own process.")
set(CPACK_DEBIAN_DEV_DESCRIPTION "build programs that use topkd${about}\
This package holds the headers, CMake and pkg-config files, and manual pages of
both libraries.")

set(CPACK_DEBIAN_DAEMON_PACKAGE_CONTROL_EXTRA
    ${debian}/topkd/conffiles ${debian}/topkd/postinst ${debian}/topkd/prerm ${debian}/topkd/postrm)
set(CPACK_DEBIAN_CLIENT_PACKAGE_CONTROL_EXTRA ${debian}/library/triggers)
set(CPACK_DEBIAN_SELECT_PACKAGE_CONTROL_EXTRA ${debian}/library/triggers)
