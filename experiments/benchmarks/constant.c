/* Answers every request on 127.0.0.1 with the same words: what a load generator can do by itself.

   constant PORT

   One thread and epoll. A request counts as whole at the end of its head plus its Content-Length. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BUFFER 8192
#define MAX_FILES 65536
#define BODY "{\"msg_type\": \"RESPONSE\", \"action\": \"TRAIN\", \"reason\": \"a constant\"}"

static char *received[MAX_FILES]; /* by file descriptor */
static int sizes[MAX_FILES];

static void answer(int fd) {
    char *in = received[fd];
    ssize_t size = recv(fd, in + sizes[fd], BUFFER - 1 - sizes[fd], 0);
    if (size <= 0) {
        close(fd);
        return;
    }
    in[sizes[fd] += size] = 0;
    char *end = strstr(in, "\r\n\r\n"), *length = strcasestr(in, "\r\ncontent-length:");
    if (!end || in + sizes[fd] < end + 4 + (length ? atol(length + 17) : 0)) return;
    char out[512];
    int whole = snprintf(out, sizeof out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                         sizeof BODY - 1, BODY);
    send(fd, out, whole, MSG_NOSIGNAL);
    sizes[fd] = 0;
}

int main(int count, char **given) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(count > 1 ? atoi(given[1]) : 0)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM, 0), poller = epoll_create1(0), yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes); /* connections inherit it */
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1024)) {
        perror("listen");
        return 1;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[256];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int ready = epoll_wait(poller, events, 256, -1);
        for (int index = 0; index < ready; index++) {
            int fd = events[index].data.fd;
            if (fd != listener) {
                answer(fd);
                continue;
            }
            if ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) < 0) continue;
            if (fd >= MAX_FILES || (!received[fd] && !(received[fd] = malloc(BUFFER)))) {
                close(fd);
                continue;
            }
            sizes[fd] = 0;
            event.data.fd = fd;
            epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
        }
    }
}
