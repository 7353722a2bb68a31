/* A link between two TUN devices, slow, far and lossy as its arguments say, for kernels without netem.

   slow_link DEVICE DEVICE BITS_PER_S DELAY_MS LOSS_PERCENT QUEUE_MS

   Packets leave each device at the rate, arrive at the other after the delay (one way), and are lost at random, in both
   directions. What would wait longer than QUEUE_MS for its turn is dropped. A line on standard input changes the loss:
   "100" cuts the link. It ends with the end of standard input. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { PLACES = 1 << 16, LARGEST_PACKET = 65536, BURST = 64 };
static const uint64_t IDLE_NS = 1000000000ull;

struct packet {
    uint64_t due_ns;
    int size;
    unsigned char *bytes;
};

struct direction {
    int from, to;
    struct packet *ring;
    unsigned newest, oldest;
    uint64_t free_ns; /* when the last packet has left */
};

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static double next_random(void)
{
    static uint64_t state = 0x9E3779B97F4A7C15ull;
    state ^= state << 7;
    state ^= state >> 9;
    return (double)(state >> 11) / 9007199254740992.0;
}

static int open_device(const char *name)
{
    struct ifreq request;
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    memset(&request, 0, sizeof request);
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    snprintf(request.ifr_name, IFNAMSIZ, "%s", name);
    if (device < 0 || ioctl(device, TUNSETIFF, &request) < 0) {
        perror(name);
        exit(1);
    }
    return device;
}

static void take_packets(struct direction *way, double bytes_per_ns, uint64_t delay_ns, double loss, uint64_t queue_ns)
{
    static unsigned char buffer[LARGEST_PACKET];
    for (int taken = 0; taken < BURST; taken++) {
        ssize_t size = read(way->from, buffer, sizeof buffer);
        if (size <= 0)
            return;
        uint64_t now = now_ns(), start = way->free_ns > now ? way->free_ns : now;
        if (next_random() < loss || start - now > queue_ns || way->newest - way->oldest >= PLACES)
            continue;
        struct packet *packet = &way->ring[way->newest % PLACES];
        way->free_ns = start + (uint64_t)((double)size / bytes_per_ns);
        packet->due_ns = way->free_ns + delay_ns;
        packet->size = (int)size;
        packet->bytes = malloc((size_t)size);
        if (!packet->bytes)
            continue;
        memcpy(packet->bytes, buffer, (size_t)size);
        way->newest++;
    }
}

/* Delivers what is due, and returns when the next packet will be. */
static uint64_t give_packets(struct direction *way, uint64_t idle_until)
{
    while (way->oldest != way->newest) {
        struct packet *packet = &way->ring[way->oldest % PLACES];
        if (packet->due_ns > now_ns())
            return packet->due_ns < idle_until ? packet->due_ns : idle_until;
        if (write(way->to, packet->bytes, (size_t)packet->size) < 0) {
            /* the receiving device is full or down: lost, as on a wire */
        }
        free(packet->bytes);
        way->oldest++;
    }
    return idle_until;
}

int main(int count, char **words)
{
    if (count != 7) {
        fprintf(stderr, "slow_link DEVICE DEVICE BITS_PER_S DELAY_MS LOSS_PERCENT QUEUE_MS\n");
        return 2;
    }
    int ends[2] = {open_device(words[1]), open_device(words[2])};
    double bytes_per_ns = atof(words[3]) / 8e9, loss = atof(words[5]) / 100;
    uint64_t delay_ns = (uint64_t)(atof(words[4]) * 1e6), queue_ns = (uint64_t)(atof(words[6]) * 1e6);
    struct direction ways[2] = {{ends[0], ends[1], 0, 0, 0, 0}, {ends[1], ends[0], 0, 0, 0, 0}};
    for (int way = 0; way < 2; way++)
        if (!(ways[way].ring = calloc(PLACES, sizeof(struct packet))))
            return 1;
    prctl(PR_SET_TIMERSLACK, 1000); /* the kernel may otherwise be 50 us late with each packet */
    puts("up");
    fflush(stdout);
    for (;;) {
        uint64_t next = now_ns() + IDLE_NS;
        for (int way = 0; way < 2; way++) {
            take_packets(&ways[way], bytes_per_ns, delay_ns, loss, queue_ns);
            next = give_packets(&ways[way], next);
        }
        uint64_t now = now_ns(), wait_ns = next > now ? next - now : 0;
        struct pollfd inputs[3] = {{ends[0], POLLIN, 0}, {ends[1], POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
        struct timespec wait = {(time_t)(wait_ns / 1000000000ull), (long)(wait_ns % 1000000000ull)};
        if (ppoll(inputs, 3, &wait, NULL) > 0 && inputs[2].revents) {
            char line[32];
            ssize_t size = read(STDIN_FILENO, line, sizeof line - 1);
            if (size <= 0)
                return 0;
            line[size] = 0;
            loss = atof(line) / 100;
        }
    }
}
