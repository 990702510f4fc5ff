/* Writes what an execution gives to standard output, through an event loop.
 *
 *     read DOOR EXECUTION
 *     read DOOR --tool NAME [ARGUMENTS]
 *
 * The exit code is 0 if it was completed and nothing was missed.
 */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "../streamdoor.h"

static int complain(const char *what)
{
    fprintf(stderr, "read: %s: %s\n", what, sd_error_text());
    return 1;
}

/* What one delivery says; 0 to go on. */
static void tell(const sd_delivery *delivery)
{
    switch (delivery->type) {
    case SD_CHUNK:
        fwrite(delivery->data, 1, delivery->size, stdout);
        break;
    case SD_GAP:
        fprintf(stderr, "read: missed %" PRIu64 " to %" PRIu64 "\n", delivery->seq,
                delivery->to_seq);
        break;
    case SD_PROGRESS:
        fprintf(stderr, "read: %.0f done %.*s\n", delivery->progress, (int)delivery->size,
                (const char *)delivery->data);
        break;
    case SD_END:
        fprintf(stderr, "read: end %" PRIu32 " chunks %" PRIu64 " bytes %" PRIu64 " %.*s\n",
                delivery->outcome, delivery->chunk_count, delivery->byte_count,
                (int)delivery->size, (const char *)delivery->data);
        break;
    }
}

int main(int argc, char **argv)
{
    int runs = argc >= 3 && strcmp(argv[2], "--tool") == 0;
    if (runs ? argc < 4 || argc > 5 : argc != 3) {
        fprintf(stderr, "usage: read DOOR (EXECUTION | --tool NAME [ARGUMENTS])\n");
        return 2;
    }
    sd_door door;
    sd_reader reader;
    sd_read_options options = SD_READ_OPTIONS_INIT;
    options.policy = SD_POLICY_BLOCK;
    int found = sd_open(argv[1], NULL, &door);
    if (found >= 0)
        found = runs ? sd_run(door, argv[3], argc == 5 ? argv[4] : NULL, &options, &reader)
                     : sd_read(door, argv[2], &options, &reader);
    if (found < 0)
        return complain(argv[1]);

    sd_delivery delivery = SD_DELIVERY_INIT;
    int exit_code = 1;
    for (;;) {
        while ((found = sd_poll(reader, &delivery)) == SD_DELIVERY) {
            tell(&delivery);
            if (delivery.type == SD_END)
                exit_code = delivery.outcome != SD_COMPLETED || delivery.missed_chunks > 0;
        }
        if (found < 0)
            return complain("poll");
        if (found == SD_OVER)
            break;
        struct pollfd wait = {sd_fd(reader), POLLIN, 0};
        if (sd_watch(reader) == 1)
            poll(&wait, 1, -1);
    }
    sd_close_reader(reader);
    sd_close(door);
    return fflush(stdout) == 0 ? exit_code : 1;
}
