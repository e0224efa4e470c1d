/* Asks an HTTP server on 127.0.0.1 as fast as it answers, and says how fast that was.

   load PORT CLIENTS SECONDS WARM_UP_S KEEP FIRST_STEP MAX_MESSAGES PATH CONTENT_TYPE BODY UNWANTED

   Each client is one worker: it sends a POST, waits for the whole answer, and sends the next one. KEEP 1: over one
   connection that is kept; KEEP 0: over a new one each time. In BODY %r stands for the client's rank, from 1, and %k for
   its step, which begins at FIRST_STEP and grows by one with each message. The run ends after SECONDS, or once
   MAX_MESSAGES were sent (0: no limit). A 200 whose body contains UNWANTED is a "short cut": not what was to be measured.

   A message is timed from before its connection is opened, where it needs one, to the last byte of the answer. Timed
   are all that end after the warm-up, also those that are on their way at the end: they are waited for DRAIN_S longer.
   One thread and epoll, a few microseconds a message: benchmarks/state_server.py shows what it can do by itself.
   Prints one JSON object. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DRAIN_S 3.0    /* longer than the first retry of a connection that a full backlog dropped (1 s) */
#define PAUSE_S 0.01   /* before a message that failed is sent again */
#define SCAN_S 0.005   /* how often the clients that pause are looked at */
#define BUFFER 8192

typedef struct {
    int fd, rank, connecting, waiting;
    long step;
    double begin; /* of the message under way, or when to send it again */
    int out_size, out_sent, in_size;
    char out[2 * BUFFER], in[BUFFER];
} Client;

static struct sockaddr_in address;
static const char *path, *content_type, *body_template, *unwanted;
static int keep, poller;
static double window_begin, window_end;
static long max_messages, sent, done, answered, refused, lost, bad_status, short_cuts, unanswered;
static float *latencies;
static size_t timed, room;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void keep_latency(double seconds) {
    if (timed == room && !(latencies = realloc(latencies, (room = room ? 2 * room : 1 << 16) * sizeof *latencies)))
        fail("memory");
    latencies[timed++] = (float)seconds;
}

static void hang_up(Client *client) {
    if (client->fd >= 0) close(client->fd);
    client->fd = -1;
}

/* The request of the client's step: the body first, since the head says how long it is. */
static void write_request(Client *client) {
    static char body[BUFFER];
    int size = 0;
    for (const char *at = body_template; *at && size < BUFFER - 32; at++) {
        if (at[0] == '%' && (at[1] == 'r' || at[1] == 'k'))
            size += *++at == 'r' ? sprintf(body + size, "%d", client->rank) : sprintf(body + size, "%ld", client->step);
        else
            body[size++] = *at;
    }
    client->out_size = snprintf(client->out, sizeof client->out,
                                "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: gzip, deflate\r\nAccept: */*\r\n"
                                "Connection: keep-alive\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%.*s",
                                path, content_type, size, size, body);
    client->out_sent = client->in_size = 0;
}

static void again_later(Client *client, long *counter) {
    if (now() >= window_begin) ++*counter;
    hang_up(client);
    client->waiting = 0;
    client->begin = now() + PAUSE_S;
}

static void send_rest(Client *client) {
    ssize_t size = send(client->fd, client->out + client->out_sent, client->out_size - client->out_sent, MSG_NOSIGNAL);
    if (size >= 0)
        client->out_sent += size; /* a request is far smaller than a socket's buffer */
    else if (errno != EAGAIN)
        again_later(client, &lost);
}

static void begin_message(Client *client) {
    double time = now();
    if (time >= window_end) return;
    if (max_messages && sent >= max_messages) {
        window_end = time;
        return;
    }
    sent++;
    write_request(client);
    client->waiting = 1;
    client->begin = time;
    if (client->fd >= 0) {
        send_rest(client);
        return;
    }
    client->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (client->fd < 0) fail("socket");
    int yes = 1;
    setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    client->connecting = 1;
    struct epoll_event event = {.events = EPOLLOUT, .data.ptr = client};
    if (connect(client->fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS)
        again_later(client, &refused);
    else if (epoll_ctl(poller, EPOLL_CTL_ADD, client->fd, &event))
        fail("epoll_ctl");
}

static void connected(Client *client) {
    int problem = 0;
    socklen_t size = sizeof problem;
    getsockopt(client->fd, SOL_SOCKET, SO_ERROR, &problem, &size);
    if (problem) {
        again_later(client, &refused);
        return;
    }
    client->connecting = 0;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};
    epoll_ctl(poller, EPOLL_CTL_MOD, client->fd, &event);
    send_rest(client);
}

static void take_answer(Client *client, const char *body, int closes) {
    double time = now();
    done++;
    client->waiting = 0;
    if (window_begin <= time && time < window_end) answered++;
    if (time >= window_begin) keep_latency(time - client->begin);
    if (strncmp(client->in + 8, " 200", 4))
        bad_status++;
    else if (*unwanted && strstr(body, unwanted))
        short_cuts++;
    if (closes) hang_up(client);
    client->step++;
    begin_message(client);
}

static void receive(Client *client) {
    ssize_t size = recv(client->fd, client->in + client->in_size, BUFFER - 1 - client->in_size, 0);
    if (size < 0 && errno == EAGAIN) return;
    if (size > 0) client->in[client->in_size += size] = 0;
    char *end = client->in_size ? strstr(client->in, "\r\n\r\n") : NULL;
    char *length = end ? strcasestr(client->in, "\r\ncontent-length:") : NULL;
    if (length > end) length = NULL;
    if (size <= 0) {
        if (!client->waiting) /* between two messages a server may close */
            hang_up(client);
        else if (end && !length) /* an answer that ends with its connection */
            take_answer(client, end + 4, 1);
        else
            again_later(client, &lost);
    } else if (length && client->in + client->in_size >= end + 4 + atol(length + 17)) {
        char *closes = strcasestr(client->in, "\r\nconnection: close");
        take_answer(client, end + 4, !keep || (closes && closes < end));
    } else if (client->in_size == BUFFER - 1) {
        again_later(client, &bad_status); /* longer than this program reads */
    }
}

static int ascending(const void *one, const void *other) {
    float difference = *(const float *)one - *(const float *)other;
    return (difference > 0) - (difference < 0);
}

static double share_ms(double share) {
    return timed ? 1e3 * latencies[(size_t)((timed - 1) * share)] : 0;
}

int main(int count, char **given) {
    if (count != 12) {
        fprintf(stderr, "usage: load PORT CLIENTS SECONDS WARM_UP_S KEEP FIRST_STEP MAX_MESSAGES PATH CONTENT_TYPE BODY UNWANTED\n");
        return 2;
    }
    int clients = atoi(given[2]);
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(given[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    keep = atoi(given[5]);
    max_messages = atol(given[7]);
    path = given[8], content_type = given[9], body_template = given[10], unwanted = given[11];
    poller = epoll_create1(0);
    Client *all = calloc(clients, sizeof *all);
    if (!all || strlen(body_template) > BUFFER / 2) fail("memory");

    window_begin = now() + atof(given[4]);
    window_end = window_begin + atof(given[3]);
    for (int index = 0; index < clients; index++) {
        all[index].fd = -1, all[index].rank = index + 1, all[index].step = atol(given[6]);
        begin_message(&all[index]);
    }
    double scanned = now();
    struct epoll_event events[256];
    for (;;) {
        int ready = epoll_wait(poller, events, 256, (int)(1e3 * SCAN_S));
        for (int index = 0; index < ready; index++) {
            Client *client = events[index].data.ptr;
            if (client->fd < 0) continue;
            client->connecting ? connected(client) : receive(client);
        }
        double time = now();
        if (time - scanned < SCAN_S) continue;
        scanned = time;
        int waiting = 0;
        for (int index = 0; index < clients; index++) {
            if (!all[index].waiting && all[index].begin <= time) begin_message(&all[index]);
            waiting += all[index].waiting;
        }
        if (time >= window_end && (!waiting || time >= window_end + DRAIN_S)) break;
    }
    long last_step = 0;
    for (int index = 0; index < clients; index++) {
        if (all[index].step > last_step) last_step = all[index].step;
        if (!all[index].waiting) continue;
        unanswered++;
        keep_latency(now() - all[index].begin);
    }
    qsort(latencies, timed, sizeof *latencies, ascending);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double own_s = used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
    printf("{\"per_s\": %.1f, \"p50_ms\": %.4f, \"p99_ms\": %.4f, \"longest_ms\": %.4f, \"sent\": %ld, \"done\": %ld, "
           "\"last_step\": %ld, \"own_cpu_us\": %.3f, \"refused\": %ld, \"lost\": %ld, \"bad_status\": %ld, "
           "\"short_cuts\": %ld, \"unanswered\": %ld}\n",
           answered / (window_end - window_begin), share_ms(0.5), share_ms(0.99), share_ms(1), sent, done, last_step,
           done ? own_s * 1e6 / done : 0, refused, lost, bad_status, short_cuts, unanswered);
    return 0;
}
