# cmake -DNM=... -DISA=... "-DOBJECTS=..." -P symbols.cmake: every symbol that the objects of an instruction set define is local or
# named for the set, and none is weak or common: the linker might take such a one for the same name elsewhere.
if(NOT OBJECTS)
  message(FATAL_ERROR "${ISA}: no objects")
endif()
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} -P --defined-only ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" symbols "${symbols}")
  foreach(symbol IN LISTS symbols)
    if(NOT symbol MATCHES "^[^ ]+ [a-z] " AND NOT symbol MATCHES "^[^ ]+_${ISA} [TDRB] " OR symbol MATCHES "^[^ ]+ [uvwi] ")
      message(SEND_ERROR "${object}: ${symbol}")
    endif()
  endforeach()
endforeach()
