# The libraries of a portable build (CKPTFS_PORTABLE): static ones, so that the command and libckptfs need no more than
# libc and libm of glibc 2.34, and libgcc_s. For Debian 12, which has the oldest glibc that we build on: its -dev packages
# hold the archives, scripts/setup --wheel builds libcurl with HTTP alone, and fmt and spdlog are taken as headers.
set(OPENSSL_USE_STATIC_LIBS ON)
find_package(OpenSSL REQUIRED)
find_package(CURL CONFIG REQUIRED PATHS ${CKPTFS_DEPS}/curl NO_DEFAULT_PATH)
foreach(name uring expat rocksdb gflags snappy bz2 lz4 zstd z)
  find_library(CKPTFS_LIB_${name} lib${name}.a REQUIRED)
endforeach()
add_library(portable_text INTERFACE)
target_compile_definitions(portable_text INTERFACE FMT_HEADER_ONLY=1 SPDLOG_FMT_EXTERNAL)
set(text_libraries portable_text)
set(uring_libraries ${CKPTFS_LIB_uring})
set(http_libraries CURL::libcurl ${CKPTFS_LIB_expat} OpenSSL::Crypto)
set(index_libraries ${CKPTFS_LIB_rocksdb} ${CKPTFS_LIB_gflags} ${CKPTFS_LIB_snappy} ${CKPTFS_LIB_bz2} ${CKPTFS_LIB_lz4}
    ${CKPTFS_LIB_zstd} ${CKPTFS_LIB_z})
add_library(portable_link OBJECT ${CMAKE_SOURCE_DIR}/scripts/packaging/arc4random.c)
target_link_options(portable_link INTERFACE -static-libstdc++ -Wl,--gc-sections)
