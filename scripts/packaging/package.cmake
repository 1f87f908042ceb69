# What `cmake --install` installs, and the Debian package that scripts/packaging/package makes of it.
include(GNUInstallDirs)

set(doc ${CMAKE_INSTALL_DATADIR}/doc/ckptfs)
install(TARGETS ckptfs RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY gpu/python/ckptfs DESTINATION lib/python3/dist-packages FILES_MATCHING PATTERN "*.py" PATTERN "py.typed")
install(TARGETS ckptfs_library LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
# Of the Python wheel, which takes the package's own files by itself.
install(TARGETS ckptfs_library LIBRARY DESTINATION ckptfs COMPONENT wheel EXCLUDE_FROM_ALL)
if(SKBUILD)
  install(TARGETS ckptfs RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT wheel EXCLUDE_FROM_ALL)
endif()
install(FILES gpu/ckptfs.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES README.md DESTINATION ${doc})
install(DIRECTORY docs DESTINATION ${doc})  # beside README.md, whose links lead there
install(FILES scripts/packaging/copyright DESTINATION ${doc})
install(FILES scripts/packaging/ckpt.conf DESTINATION ${doc}/examples)
install(FILES scripts/packaging/ckptfs@.service DESTINATION lib/systemd/system)
# mount(8) looks for mount.ckptfs. The command itself prints the shells' completions and its manual.
install(CODE [[
  set(root "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
  file(MAKE_DIRECTORY "${root}/sbin" "${root}/share/bash-completion/completions"
       "${root}/share/zsh/vendor-completions" "${root}/share/fish/vendor_completions.d" "${root}/share/man/man1")
  file(CREATE_LINK ../bin/ckptfs "${root}/sbin/mount.ckptfs" SYMBOLIC)
  foreach(shell_and_file "bash;bash-completion/completions/ckptfs" "zsh;zsh/vendor-completions/_ckptfs"
          "fish;fish/vendor_completions.d/ckptfs.fish")
    list(GET shell_and_file 0 shell)
    list(GET shell_and_file 1 file)
    execute_process(COMMAND "${root}/bin/ckptfs" completion ${shell} OUTPUT_FILE "${root}/share/${file}"
                    COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  execute_process(COMMAND "${root}/bin/ckptfs" help --man OUTPUT_FILE "${root}/share/man/man1/ckptfs.1"
                  COMMAND_ERROR_IS_FATAL ANY)
]])

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME ckptfs)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "the ckptfs authors <ckptfs@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGE_DESCRIPTION
    "Mount it, point DeepSpeed's nvme_path at it, and a checkpoint stops being a copy: identical offloaded buffers are
shared copy-on-write between the live swap files and all steps.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "fuse3, xfsprogs, mount")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "python3, prometheus")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(packaging ${CMAKE_SOURCE_DIR}/scripts/packaging)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${packaging}/postinst ${packaging}/prerm ${packaging}/postrm)
include(CPack)
