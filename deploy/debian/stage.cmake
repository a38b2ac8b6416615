# Run by cpack in the staged tree of all components, before the packages are made: what Debian asks
# of a package's files and an installation into a folder of one's own does not.
#  - no library search path (installed elsewhere, programs find the libraries beside them by it)
#  - compressed manual pages and change logs, a copyright file, a log of the package's versions
find_program(CHRPATH chrpath)
find_program(GZIP gzip)
if(NOT CHRPATH OR NOT GZIP)
  message(FATAL_ERROR "packages need chrpath and gzip: deploy/packages.sh install package")
endif()

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN}: ${result}: ${output}")
  endif()
endfunction()

# The date of the version: of its last commit, so that the same commit makes the same package.
set(date "$ENV{SOURCE_DATE_EPOCH}")
if(date STREQUAL "")
  execute_process(COMMAND git -C ${CPACK_TOPKD_SOURCE_DIR} log -1 --format=%ct
                  OUTPUT_VARIABLE date OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(date STREQUAL "")
  string(TIMESTAMP date "%s" UTC)
endif()
set(ENV{SOURCE_DATE_EPOCH} ${date})
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)

foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  string(TOUPPER ${component} upper)
  set(package ${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
  set(root ${CPACK_TEMPORARY_DIRECTORY}/${component})

  file(GLOB programs ${root}/usr/bin/* ${root}/usr/${CPACK_TOPKD_LIBDIR}/*.so.*)
  foreach(program IN LISTS programs)
    if(NOT IS_SYMLINK ${program})
      run(${CHRPATH} --delete ${program})
    endif()
  endforeach()

  set(doc ${root}/usr/share/doc/${package})
  file(MAKE_DIRECTORY ${doc})
  configure_file(${CPACK_TOPKD_SOURCE_DIR}/deploy/debian/copyright ${doc}/copyright COPYONLY)
  configure_file(${CPACK_TOPKD_SOURCE_DIR}/CHANGELOG.md ${doc}/changelog COPYONLY)
  file(WRITE ${doc}/changelog.Debian
"topkd (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) stable; urgency=medium

  * Packaged from topkd ${CPACK_PACKAGE_VERSION}; changelog.gz says what changed.

 -- ${CPACK_DEBIAN_PACKAGE_MAINTAINER}  ${date}
")
  set(override ${CPACK_TOPKD_SOURCE_DIR}/deploy/debian/overrides/${package})
  if(EXISTS ${override})
    file(MAKE_DIRECTORY ${root}/usr/share/lintian/overrides)
    configure_file(${override} ${root}/usr/share/lintian/overrides/${package} COPYONLY)
  endif()
  file(GLOB_RECURSE texts ${root}/usr/share/man/*.[1-8])
  foreach(text IN LISTS texts ITEMS ${doc}/changelog ${doc}/changelog.Debian)
    run(${GZIP} -9n ${text})
  endforeach()
  file(GLOB_RECURSE files ${doc}/* ${root}/usr/share/lintian/* ${root}/usr/share/man/*)
  foreach(file IN LISTS files)
    file(CHMOD ${file} PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  endforeach()
endforeach()
