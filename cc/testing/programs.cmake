# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Programs that hold the plugin, and are linked to the TensorFlow that is installed. Our code is
# instrumented, TensorFlow is not:
#   address  request_fuzz_standalone, and request_fuzz where there is libFuzzer; channel_fuzz,
#            channels_test, program_fuzz
#   thread   races_test, channels_test, busy_times_test
# `make fuzz-requests`, `make fuzz-channels`, `make fuzz-updates` and `make tsan` build and run them.

# All of the plugin: so what links there links here, too. Functions of base/old_glibc.cc would stand in
# for the sanitizer's.
set(plugin_sources ${sources})
list(REMOVE_ITEM plugin_sources base/old_glibc.cc)

if(TF_FUSE_SANITIZER STREQUAL "address")
  set(sanitize -fsanitize=address,undefined -fno-sanitize-recover=all -fno-sanitize=vptr)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # With these, g++ takes no function's address for a constant, and Abseil needs that.
    list(APPEND sanitize -fno-sanitize=null,nonnull-attribute,returns-nonnull-attribute)
  endif()
elseif(TF_FUSE_SANITIZER STREQUAL "thread")
  set(sanitize -fsanitize=thread)
else()
  message(FATAL_ERROR "TF_FUSE_SANITIZER is '${TF_FUSE_SANITIZER}', expected address or thread")
endif()

include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_FLAGS "-fsanitize=fuzzer")
check_cxx_source_compiles(
  "#include <cstddef>
   #include <cstdint>
   extern \"C\" int LLVMFuzzerTestOneInput(const uint8_t*, size_t) { return 0; }"
  HAVE_LIBFUZZER)
unset(CMAKE_REQUIRED_FLAGS)

# add_instrumented(target [FLAG...]): how the target's sources are compiled.
function(add_instrumented target)
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}
                                               ${CMAKE_CURRENT_SOURCE_DIR}/.. ${generated})
  target_include_directories(
    ${target} SYSTEM PRIVATE ${tf_include}
                             ${tf_include}/external/com_github_grpc_grpc/include
                             ${tf_include}/external/farmhash_archive/src)
  target_compile_options(
    ${target} PRIVATE ${TENSORFLOW_DEFINITIONS} -Wall -Wextra -Wno-unused-parameter
                      -Wno-deprecated-declarations -O1 -g1 ${sanitize} ${ARGN}
                      -include ${CMAKE_CURRENT_SOURCE_DIR}/testing/hide_sanitizer.h)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # What ABSL_GUARDED_BY and its like promise.
    target_compile_options(${target} PRIVATE -Wthread-safety -Werror=thread-safety)
  endif()
endfunction()

# add_program(name [SOURCE...]): of the plugin and these.
function(add_program name)
  add_executable(${name} EXCLUDE_FROM_ALL ${ARGN} $<TARGET_OBJECTS:plugin_objects>)
  add_instrumented(${name})
  set_target_properties(${name} PROPERTIES BUILD_RPATH ${TENSORFLOW_DIR})
  target_link_options(${name} PRIVATE ${sanitize} -Wl,--no-as-needed)
  target_link_libraries(${name} PRIVATE ${TENSORFLOW_DIR}/libtensorflow_cc.so.2
                                        ${TENSORFLOW_DIR}/libtensorflow_framework.so.2)
  add_dependencies(programs ${name})
endfunction()

add_custom_target(programs)
add_library(plugin_objects OBJECT EXCLUDE_FROM_ALL ${plugin_sources} ${proto_sources})
set_target_properties(plugin_objects PROPERTIES UNITY_BUILD ${TF_FUSE_UNITY}
                                                UNITY_BUILD_MODE GROUP)
if(HAVE_LIBFUZZER AND TF_FUSE_SANITIZER STREQUAL "address")
  add_instrumented(plugin_objects -fsanitize=fuzzer-no-link)
else()
  add_instrumented(plugin_objects)
endif()

if(TF_FUSE_SANITIZER STREQUAL "thread")
  add_program(races_test testing/races_test.cc testing/tsan_hooks.cc)
  add_program(channels_test testing/channels/channels_test.cc testing/tsan_hooks.cc)
  add_program(busy_times_test testing/busy_times_test.cc testing/tsan_hooks.cc)
  # tsan_hooks.cc says which.
  set(status RKN4absl12lts_202508146StatusE)
  set(rendezvous _ZN10tensorflow20BaseRemoteRendezvous)
  set(key RKNS_19RendezvousInterface9ParsedKeyE)
  set(grpc_recv _ZN10tensorflow10GrpcWorker19GrpcRecvTensorAsyncEPN3tsl11CallOptions)
  set(await _ZN4absl12lts_202508145Mutex11AwaitCommonERKNS0_9ConditionE)
  set(await ${await}NS0_24synchronization_internal13KernelTimeout)
  set(call EPNS_18BaseRecvTensorCallERKNS_19RendezvousInterface4ArgsE)
  foreach(symbol
          _ZN4absl12lts_202508145Mutex4lockEv
          _ZN4absl12lts_202508145Mutex6unlockEv
          _ZN4absl12lts_202508145Mutex11lock_sharedEv
          _ZN4absl12lts_202508145Mutex13unlock_sharedEv
          ${await}E
          _ZN3tsl6thread10ThreadPool8ScheduleESt8functionIFvvEE
          _ZN3tsl18UnboundedWorkQueue8ScheduleESt8functionIFvvEE
          _ZN3tsl11CallOptions17SetCancelCallbackESt8functionIFvvEE
          _ZN3tsl11CallOptions19ClearCancelCallbackEv
          ${grpc_recv}EPKNS_17RecvTensorRequestEPN4grpc10ByteBufferESt8functionIFv${status}EE
          ${rendezvous}14RecvLocalAsyncE${key}St8functionIFv${status}RKNS1_4ArgsESD_RKNS_6TensorEbEE
          ${rendezvous}4SendE${key}RKNS1_4ArgsERKNS_6TensorEb
          ${rendezvous}12RegisterCall${call}
          ${rendezvous}14DeregisterCall${call}
          ${rendezvous}10StartAbortE${status})
    foreach(program races_test channels_test busy_times_test)
      target_link_options(${program} PRIVATE -Wl,--wrap=${symbol})
    endforeach()
  endforeach()
  return()
endif()

add_library(request_fuzz_objects OBJECT EXCLUDE_FROM_ALL
            testing/requests/check_answers.cc testing/requests/fuzz_task.cc
            testing/requests/replaced_functions.cc testing/requests/request_fuzz.cc
            testing/requests/fuzz_script.cc)
add_dependencies(request_fuzz_objects plugin_objects)  # The generated headers.
if(HAVE_LIBFUZZER)
  add_instrumented(request_fuzz_objects -fsanitize=fuzzer-no-link)
else()
  add_instrumented(request_fuzz_objects)
endif()
add_program(request_fuzz_standalone testing/requests/standalone_main.cc
            $<TARGET_OBJECTS:request_fuzz_objects>)
add_program(channel_fuzz testing/channels/channel_fuzz.cc testing/channels/lying_peer.cc)
add_program(channels_test testing/channels/channels_test.cc)
add_program(program_fuzz testing/update_program_fuzz.cc)
# As in the plugin; and integers overflow there as they do in TensorFlow's kernels.
get_source_file_property(block_options update/block_ops.cc COMPILE_OPTIONS)
if(NOT block_options)
  set(block_options "")
endif()
list(APPEND block_options -fno-sanitize=signed-integer-overflow,float-cast-overflow)
set_source_files_properties(update/block_ops.cc PROPERTIES COMPILE_OPTIONS "${block_options}")
if(HAVE_LIBFUZZER)
  # CMake wants a source of a program's own.
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/request_fuzz_main_is_in_libfuzzer.cc "")
  add_program(request_fuzz ${CMAKE_CURRENT_BINARY_DIR}/request_fuzz_main_is_in_libfuzzer.cc
              $<TARGET_OBJECTS:request_fuzz_objects>)
  target_link_options(request_fuzz PRIVATE -fsanitize=fuzzer)
else()
  message(STATUS "No libFuzzer in ${CMAKE_CXX_COMPILER}: request_fuzz is not built, "
                 "request_fuzz_standalone is")
endif()
foreach(program request_fuzz_standalone request_fuzz)
  if(TARGET ${program})
    # replaced_functions.cc has its own.
    target_link_options(
      ${program} PRIVATE -Wl,--wrap=_ZN10tensorflow6Worker9AbortStepEl
                         -Wl,--wrap=_ZN3tsl6thread10ThreadPool8ScheduleESt8functionIFvvEE
                         -Wl,--wrap=_ZN3tsl18UnboundedWorkQueue8ScheduleESt8functionIFvvEE)
  endif()
endforeach()
