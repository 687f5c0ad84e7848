/* What host-local must ask of the kernel for one ADD or one DEL, and nothing else: the floor that the plugin is measured against.
 *
 * The same calls in the same order: read standard input, open and lock the network's directory, list it, read every lease, then
 * for ADD read the cursor, write the lease under another name, rename it into place, set the cursor and print the result; for DEL
 * unlink the lease. No configuration is parsed, and the next address is the one after the cursor in 10.0.0.0/16. The network's
 * directory is the one argument. Not a plugin: any failure ends it with a line on standard error.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static void need(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

int main(int argc, char **argv) {
    char input[65536], own[512], content[1024], found[300] = "";
    const char *command = getenv("CNI_COMMAND"), *id = getenv("CNI_CONTAINERID"), *ifname = getenv("CNI_IFNAME");
    if (argc != 2 || !command || !id || !ifname) {
        fprintf(stderr, "usage: CNI_COMMAND=ADD|DEL CNI_CONTAINERID=ID CNI_IFNAME=NAME reserve DIRECTORY\n");
        return 2;
    }
    while (read(0, input, sizeof input) > 0) {
    }
    int own_length = snprintf(own, sizeof own, "%s\r\n%s", id, ifname);

    struct stat status;
    mkdir(argv[1], 0777);
    need(chdir(argv[1]) == 0, "chdir");
    int lock = open("lock", O_RDONLY | O_CREAT | O_CLOEXEC, 0750);
    need(lock >= 0, "lock");
    need(fstat(lock, &status) == 0, "fstat");
    need(flock(lock, LOCK_EX) == 0, "flock");

    DIR *directory = opendir(".");
    need(directory != NULL, "opendir");
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (strncmp(entry->d_name, "10.", 3) != 0)
            continue;
        int lease = openat(dirfd(directory), entry->d_name, O_RDONLY | O_CLOEXEC);
        need(lease >= 0, entry->d_name);
        ssize_t length = read(lease, content, sizeof content);
        close(lease);
        if (length == own_length && memcmp(content, own, length) == 0)
            snprintf(found, sizeof found, "%s", entry->d_name);
    }
    closedir(directory);

    if (strcmp(command, "DEL") == 0) {
        need(found[0] && unlink(found) == 0, "unlink");
        return 0;
    }
    unsigned third = 0, fourth = 0;
    int cursor = open("last_reserved_ip.0", O_RDONLY | O_CLOEXEC);
    need(cursor >= 0, "cursor");
    ssize_t length = read(cursor, content, sizeof content - 1);
    close(cursor);
    content[length > 0 ? length : 0] = 0;
    need(sscanf(content, "10.0.%u.%u", &third, &fourth) == 2, "cursor");
    unsigned next = third * 256 + fourth + 1;
    char address[32];
    int address_length = snprintf(address, sizeof address, "10.0.%u.%u", next / 256, next % 256);

    int lease = open(".lease.tmp", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    need(lease >= 0, "lease");
    need(write(lease, own, own_length) == own_length, "write");
    need(renameat2(AT_FDCWD, ".lease.tmp", AT_FDCWD, address, RENAME_NOREPLACE) == 0, "rename");
    close(lease);
    cursor = open("last_reserved_ip.0", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    need(cursor >= 0, "cursor");
    need(pwrite(cursor, address, address_length, 0) == address_length, "cursor");
    need(ftruncate(cursor, address_length) == 0, "cursor");
    close(cursor);
    printf("{\"cniVersion\": \"1.0.0\", \"ips\": [{\"address\": \"%s/16\", \"gateway\": \"10.0.0.1\"}]}", address);
    return 0;
}
