# Debian packages by CPack: `cpack -G DEB --config BUILD/CPackConfig.cmake -B FOLDER`, from a build
# configured with the prefix /usr (the presets package and dev are), which puts libraries where
# Debian keeps them. One package a component; what each says of itself is in deploy/debian/cpack.cmake.
set(CPACK_PACKAGE_NAME topkd)
set(CPACK_PACKAGE_VENDOR "topkd")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL daemon tool client select dev)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_VERBATIM_VARIABLES ON)
# Read by cpack itself, so that a version given to cpack reaches the dependencies too.
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/deploy/debian/cpack.cmake)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/deploy/debian/stage.cmake)
set(CPACK_TOPKD_SOURCE_DIR ${PROJECT_SOURCE_DIR})
set(CPACK_TOPKD_LIBDIR ${CMAKE_INSTALL_LIBDIR})
set(CPACK_TOPKD_BINARY_DIR ${PROJECT_BINARY_DIR})
set(CPACK_TOPKD_PREFIX ${CMAKE_INSTALL_PREFIX})
include(CPack)
