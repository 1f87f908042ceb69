// What a remote mount shows by HTTP: "/", a page for people, "/api/state" and "/metrics".
#pragma once

#include "fs/control/http_server.h"
#include "fs/remote_mount/remote_mount.h"

namespace ckptfs::fs::remote_mount {

// `mount` must outlive the server's stop().
void add_pages(HttpServer& server, const RemoteMount& mount);

}  // namespace ckptfs::fs::remote_mount
