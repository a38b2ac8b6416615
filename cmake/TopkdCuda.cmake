# Decides once whether the CUDA device is built: sets TOPKD_WITH_CUDA.
set(TOPKD_WITH_CUDA OFF)
if(NOT TOPKD_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(TOPKD_NVCC nvcc HINTS /usr/local/cuda/bin)
    if(TOPKD_NVCC)
      set(CMAKE_CUDA_COMPILER "${TOPKD_NVCC}")
    endif()
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # Named here because a fat binary is the product: sm_80, sm_90, sm_100, sm_120 machine code, and
    # PTX of the newest for what comes after.
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 100-real 120)
      # Programs of tests and benchmarks, which compile in half the time: machine code of two, and
      # PTX that the driver translates for the others.
      set(TOPKD_PROGRAM_CUDA_ARCHITECTURES 80-real 90)
    endif()
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 17)
    find_package(CUDAToolkit REQUIRED)
    set(TOPKD_WITH_CUDA ON)
  elseif(TOPKD_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TOPKD_CUDA=ON but no nvcc was found: put it on PATH, set "
                        "CMAKE_CUDA_COMPILER, or configure with TOPKD_CUDA=OFF")
  endif()
endif()
message(STATUS "topkd: CUDA device ${TOPKD_WITH_CUDA} (TOPKD_CUDA=${TOPKD_CUDA})")
