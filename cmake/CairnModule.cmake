# A folder of cairn/ is one static library: every .cc in it, and the libraries that its layer allows.
function(cairn_library name)
  cmake_parse_arguments(ARG "" "" "LINKS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  if(NOT sources)
    add_library(cairn_${name} INTERFACE)
    target_include_directories(cairn_${name} INTERFACE ${PROJECT_SOURCE_DIR})
    target_link_libraries(cairn_${name} INTERFACE ${ARG_LINKS})
    return()
  endif()
  add_library(cairn_${name} STATIC ${sources})
  target_include_directories(cairn_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(cairn_${name} PUBLIC ${ARG_LINKS})
endfunction()

# All *_test.cc of a folder of tests/ form one program, found by ctest test by test. PROCESSORS: how
# many of them one test keeps busy.
function(cairn_tests name)
  cmake_parse_arguments(ARG "" "PROCESSORS" "LINKS" ${ARGN})
  if(NOT ARG_PROCESSORS)
    set(ARG_PROCESSORS 1)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${name}/*_test.cc)
  if(NOT sources)
    return()
  endif()
  add_executable(${name}_tests ${sources})
  target_link_libraries(${name}_tests PRIVATE ${ARG_LINKS} cairn_test_support GTest::gtest GTest::gmock
                                              GTest::gtest_main)
  gtest_discover_tests(${name}_tests WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} TEST_PREFIX ${name}.
                       DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES PROPERTIES LABELS ${name} TIMEOUT 900
                                                 PROCESSORS ${ARG_PROCESSORS})
endfunction()
