target_link_libraries(${TARGET} PRIVATE PkgConfig::MICROHTTPD)
