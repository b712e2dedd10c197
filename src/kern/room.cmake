# Instruction-set flags go on the kernel files alone, so that no wide instruction reaches code that
# runs before pick.c has asked the CPU.
set(avx2 -mavx2 -mfma -mf16c -mbmi -mbmi2)
set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512)
set(avx512_vnni ${avx512} -mavx512vnni)
set(neon -march=armv8.2-a+dotprod)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(kern_isas avx2 avx512 avx512_vnni)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(kern_isas neon)
else()
  set(kern_isas)
endif()
foreach(isa avx2 avx512 avx512_vnni neon)
  if(isa IN_LIST kern_isas)
    set_source_files_properties(${dir}/kern_${isa}.c PROPERTIES COMPILE_OPTIONS "${${isa}}")
  else()
    set_source_files_properties(${dir}/kern_${isa}.c PROPERTIES HEADER_FILE_ONLY TRUE)
  endif()
endforeach()
# ref is the meaning, not the speed: at -O3 its 16-lane arrays take gcc over a minute to unroll.
set_source_files_properties(${dir}/kern_ref.c PROPERTIES COMPILE_OPTIONS "-O2")
# Under a sanitizer the unrolled kernels take minutes to compile; fewer tokens at a time give the same
# bits.
target_compile_definitions(${TARGET} PRIVATE KERN_SMALL=$<CONFIG:Asan,Tsan,Fuzz>)

# The other architecture's table, where a cross compiler and an emulator are at hand.
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  add_test(NAME kern/neon COMMAND ${PROJECT_SOURCE_DIR}/tests/neon/run.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
  set_tests_properties(kern/neon PROPERTIES LABELS slow TIMEOUT 900 SKIP_RETURN_CODE 77)
endif()
